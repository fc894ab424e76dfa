"""Whether two builds of `_cuda` hold the same machine code, the kernels' names aside.

    python scripts/compare_machine_code.py BEFORE AFTER

BEFORE and AFTER are modules (`_cuda*.so`), objects or build folders. Configure both builds with
`-DCMAKE_CUDA_FLAGS=-no-compress`, for the same architectures. A kernel is compared by its
instructions, registers, shared memory, constants and parameters. The exit status is 1 if a kernel
of one build has no equal in the other.
"""

import hashlib
import re
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

EM_CUDA = 190
NAMESPACES = re.compile(r"\(anonymous namespace\)::|\bjaxgnn::(?:[a-z]+::)?")


def sections(data: bytes, start: int) -> list[tuple[str, int, int, bytes]]:
    """The sections of the 64-bit ELF file at `start`: name, size, info, contents."""
    table, entry_size, number, names = struct.unpack_from("<Q", data, start + 40) + (
        struct.unpack_from("<HHH", data, start + 58)
    )
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, start + table + i * entry_size)
        for i in range(number)
    ]
    strings = start + headers[names][4]
    found = []
    for name, kind, _, _, offset, size, _, info, _, _ in headers:
        text = data[strings + name : data.index(b"\0", strings + name)].decode()
        nobits = kind == 8 or kind == 0x7000000A  # SHT_NOBITS, SHT_CUDA_SHARED
        contents = b"" if nobits else data[start + offset : start + offset + size]
        found.append((text, size, info, contents))
    return found


def kernels(path: Path) -> list[tuple[str, str]]:
    """The mangled name and a digest of each kernel in the device code of a file."""
    data = path.read_bytes()
    found = []
    start = data.find(b"\x7fELF", 1)
    while start >= 0:
        if struct.unpack_from("<H", data, start + 18)[0] == EM_CUDA:
            parts = defaultdict(list)
            for name, size, info, contents in sections(data, start):
                for prefix in (".text.", ".nv.shared.", ".nv.constant", ".nv.local."):
                    if name.startswith(prefix):
                        section, _, kernel = name[1:].partition("_Z")
                        # The high byte of the info of .text is the number of registers.
                        registers = info >> 24 if prefix == ".text." else 0
                        parts["_Z" + kernel].append((section, size, registers, contents))
            for kernel, its_sections in parts.items():
                if any(section == "text." for section, *_ in its_sections):
                    digest = hashlib.sha256(repr(sorted(its_sections)).encode()).hexdigest()
                    found.append((kernel, digest))
        start = data.find(b"\x7fELF", start + 1)
    return found


def module(path: Path) -> Path:
    if path.is_dir():
        built = sorted(path.rglob("_cuda*.so"))
        if len(built) != 1:
            raise SystemExit(f"{path}: expected one _cuda*.so, found {len(built)}")
        return built[0]
    return path


def readable(names: list[str]) -> list[str]:
    lines = "\n".join(names)
    demangled = subprocess.run(
        ["c++filt"], input=lines, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return sorted(NAMESPACES.sub("", name) for name in demangled)


def main(before: str, after: str) -> int:
    builds = [kernels(module(Path(path))) for path in (before, after)]
    for path, build in zip((before, after), builds, strict=True):
        if not build:
            raise SystemExit(f"{path}: no device code found (built with -no-compress?)")
    counts = [Counter(digest for _, digest in build) for build in builds]
    same = sum((counts[0] & counts[1]).values())
    print(f"{len(builds[0])} kernels before, {len(builds[1])} after, {same} with equal code")
    for label, build, other in (
        ("only before", builds[0], counts[1]),
        ("only after", builds[1], counts[0]),
    ):
        unmatched = [name for name, digest in build if digest not in other]
        for name in readable(unmatched) if unmatched else []:
            print(f"{label}: {name}")
    return 0 if counts[0] == counts[1] else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
