"""Damage and malice: changes of bytes, of lines, of archives and of pickles' opcodes."""

from __future__ import annotations

import gzip
import io
import pickletools
import struct
import zipfile
from collections.abc import Callable

import numpy as np

Rng = np.random.Generator
_TOKENS = (
    b"", b"0", b"1", b"-1", b"+3", b"2147483646", b"2147483647", b"2147483648", b"4294967296",
    b"600000000", b"9223372036854775807", b"99999999999999999999", b"1" * 400, b"1.5", b"1e5",
    b"1e309", b"1_0", b"0x10", b"nan", b"-inf", b"7junk", b"1,2", b"a", b"\0", b"\xff\xfe",
    b"\xd9\xa3", b"%", b"#", b"\x1b[2J", b"[", b"]", b"{", b"null", b"true", b'"a"', b"x" * 70_000,
    b"0" * 70_000, b"\r", b"\t", b",", b'"' + b"a" * 5000 + b'"', b"[[[[" * 3000, b"[]," * 3000,
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 127, 255, 1000, 65536, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62)
_DTYPES = (
    "|i1", "<i2", "<i4", "<i8", ">i8", "<u8", "<f2", "<f4", "<f8", ">f4", "|b1", "|O", "<c8",
    "<U1", "|S3", "<M8[s]", "|V0", "(2**40,)f8",
)  # fmt: skip
_OPCODES = (
    b"0", b"1", b"2", b"(", b")", b"]", b"}", b"]q\x00", b"h\x00", b"h\x01", b"h\x02h\x02\x86q\x02",
    b"h\x03", b"r\xff\xff\xff\x7f", b"j\x00\x00\x00\x00", b"e", b"a", b"s", b"u", b"t", b"l", b"d",
    b"R", b"b", b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x89", b"N", b".", b"K\x00",
    b"J\xff\xff\xff\xff", b"\x8a\x09" + b"\xff" * 9, b"\x8b\xff\xff\xff\x7f", b"G" + b"\xff" * 8,
    b"T\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"K\xff",
    b"\x8e" + b"\x00" * 7 + b"\x40",
    b"\x95" + b"\xff" * 8, b"\x94" * 20, b"cos\nsystem\n", b"c__builtin__\neval\n", b"Vabc\n",
    b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n", b"U\x02f8", b"U\x01O",
    b"\x8c\x02os\x8c\x06system\x93", b"I99999999999999999999\n", b"S'a'\n", b"i", b"\x8f", b"\x97",
    b"]q\x00" + b"h\x00" * 500 + b"e", b"K\x01" * 2000, b"(" * 2000, b"]" * 5000, b")\x85" * 3000,
)  # fmt: skip
_ZEROS = 80 << 20
_LARGE = 1 << 21  # of an earlier change: changed no further but in its compressed bytes


def mutate(content: bytes, rng: Rng) -> bytes:
    """The content with one to three changes of the kinds that its format has."""
    for _ in range(int(rng.integers(1, 4))):
        content = _choose(rng, _kinds(content))(content, rng)
    return content


def _kinds(content: bytes) -> list[Callable[[bytes, Rng], bytes]]:
    if content.startswith(b"\x1f\x8b"):
        return [_bytes, _gzip, _gzip, _gzip]
    if content.startswith(b"PK"):
        return [_bytes, _zip, _zip, _zip, _zip_fields]
    if content.startswith(b"\x93NUMPY"):
        return [_bytes, _npy, _npy]
    if content.startswith(b"\x80"):
        return [_bytes, _pickle, _pickle, _pickle]
    return [_bytes, _text, _text, _text]


def _choose(rng: Rng, options):
    return options[int(rng.integers(len(options)))]


def _place(rng: Rng, size: int) -> int:
    """Anywhere; half of the time near one of the ends, where headers are."""
    if not size:
        return 0
    near = min(size, 200)
    kind = rng.integers(4)
    if kind == 0:
        return int(rng.integers(near))
    return size - 1 - int(rng.integers(near)) if kind == 1 else int(rng.integers(size))


def _bytes(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        place = _place(rng, len(changed))
        kind = int(rng.integers(7))
        if kind == 0:
            changed[place : place + 1] = rng.bytes(1)
        elif kind == 1 and changed:
            changed[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del changed[place : place + int(rng.integers(1, 20))]
        elif kind == 3:
            changed[place:place] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 4:
            form = _choose(rng, ("<B", "<H", "<I", "<Q", ">I"))
            value = int(_choose(rng, _NUMBERS)) % (1 << 8 * struct.calcsize(form))
            changed[place : place + struct.calcsize(form)] = struct.pack(form, value)
        elif kind == 5:
            part = changed[place : place + int(rng.integers(1, 500))]
            changed[place:place] = part * int(rng.integers(1, 4))
        elif rng.integers(4) == 0:
            del changed[place:]
    return bytes(changed)


def _text(content: bytes, rng: Rng) -> bytes:
    lines = content.split(b"\n")
    for _ in range(int(rng.integers(1, 4))):
        place = (
            int(rng.integers(len(lines)))
            if rng.integers(2)
            else int(rng.integers(min(4, len(lines))))
        )
        kind = int(rng.integers(8))
        if kind <= 3:  # a token
            separator = _choose(rng, (b" ", b"\t", b",", b": ", b'"'))
            tokens = lines[place].split(separator)
            tokens[int(rng.integers(len(tokens)))] = _choose(rng, _TOKENS)
            lines[place] = separator.join(tokens)
        elif kind == 4:
            lines.insert(place, _choose(rng, _TOKENS) + b" " + _choose(rng, _TOKENS))
        elif kind == 5:
            del lines[place]
            lines = lines or [b""]
        elif kind == 6:
            lines[place:place] = [lines[place]] * int(rng.integers(1, 50))
        else:
            lines[place] += _choose(rng, _TOKENS)
    return b"\n".join(lines)


def _gzip(content: bytes, rng: Rng) -> bytes:
    try:
        inner = gzip.decompress(content)
    except Exception:  # an earlier change broke it
        return _bytes(content, rng)
    if len(inner) > _LARGE:
        return _bytes(content, rng)
    kind = int(rng.integers(12))
    if kind == 0:
        return content + gzip.compress(_choose(rng, _TOKENS), mtime=0) * int(rng.integers(1, 50))
    if kind == 1:
        return content[: int(rng.integers(len(content)))]
    if kind == 2:
        return content + rng.bytes(int(rng.integers(1, 100)))
    if kind == 3 and rng.integers(16) == 0:
        return gzip.compress(_bomb(rng), 1, mtime=0)
    if kind == 4:
        return inner
    changed = _text(inner, rng) if kind < 10 else _bytes(inner, rng)
    return gzip.compress(changed, 1, mtime=0)


def _bomb(rng: Rng) -> bytes:
    unit = _choose(rng, (b"\0", b"%\n", b"0 1\n", b"1\n", b"0,1\n", b"#" * 100 + b"\n", b"1"))
    return unit * (_ZEROS // len(unit))


def _npy(content: bytes, rng: Rng) -> bytes:
    length = int.from_bytes(content[8:10], "little")
    header, body = content[10 : 10 + length], content[10 + length :]
    kind = int(rng.integers(6))
    if kind == 0:
        header = _bytes(header, rng)
    elif kind == 5:
        body = _bytes(body, rng)
    else:
        try:
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(
                io.BytesIO(content[8 : 10 + length])
            )
        except Exception:  # an earlier change broke it
            return _bytes(content, rng)
        fields = {"descr": dtype.str, "fortran_order": fortran, "shape": shape}
        if kind == 1:
            fields["descr"] = _choose(rng, _DTYPES)
        elif kind == 2:
            fields["shape"] = tuple(int(_choose(rng, _NUMBERS)) for _ in range(rng.integers(4)))
        elif kind == 3:
            fields["shape"] = shape[::-1]
            fields["fortran_order"] = not fortran
        else:  # another array of that dtype, as long as it says
            numbers = np.array(
                [int(_choose(rng, _NUMBERS[:-4])) for _ in range(body.__len__() // 8)]
            )
            with np.errstate(all="ignore"):
                body = numbers.astype(dtype if dtype.kind in "iufb" else np.int64).tobytes()
            fields["shape"] = (len(numbers),)
        header = repr(fields).encode() + b"\n"
    return content[:8] + struct.pack("<H", len(header) % 65536) + header + body


def _zip(content: bytes, rng: Rng) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # an earlier change broke it
        return _bytes(content, rng)
    if not members or max(map(len, members.values())) > _LARGE:
        return _bytes(content, rng)
    name = _choose(rng, sorted(members))
    method = zipfile.ZIP_DEFLATED
    kind = int(rng.integers(10))
    if kind <= 5:
        inner = members[name]
        members[name] = (_npy if inner.startswith(b"\x93NUMPY") else _bytes)(inner, rng)
    elif kind == 6:
        members[_choose(rng, sorted(members))] = members[name]
    elif kind == 7:
        del members[name]
    elif kind == 8 and rng.integers(16) == 0:
        head = b"{'descr': '|i1', 'fortran_order': False, 'shape': (%d,)}\n" % _ZEROS
        members[name] = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + bytes(_ZEROS)
    else:
        method = _choose(rng, (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, compresslevel=1) as archive:
        for member, inner in members.items():
            info = zipfile.ZipInfo(member)  # of no time
            info.compress_type = method
            archive.writestr(info, inner, compresslevel=1)
    return stream.getvalue()


def _zip_fields(content: bytes, rng: Rng) -> bytes:
    """Another number in one of the headers: sizes, checksums, offsets, flags, counts."""
    changed = bytearray(content)
    signature = _choose(rng, (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"))
    places = [i for i in range(len(content) - 4) if content[i : i + 4] == signature]
    if not places:
        return _bytes(content, rng)
    form = _choose(rng, ("<H", "<I"))
    place = _choose(rng, places) + int(rng.integers(4, 46))
    value = int(_choose(rng, _NUMBERS)) % (1 << 8 * struct.calcsize(form))
    changed[place : place + struct.calcsize(form)] = struct.pack(form, value)
    return bytes(changed)


def _pickle(content: bytes, rng: Rng) -> bytes:
    try:
        places = [place for _, _, place in pickletools.genops(content)]
    except Exception:  # an earlier change broke it
        return _bytes(content, rng)
    ends = [*places[1:], len(content)]
    parts = [content[a:b] for a, b in zip(places, ends, strict=True)]
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(parts)))
        if rng.integers(2):  # where arrays are described
            place = min(place, int(rng.integers(min(60, len(parts)))))
        kind = int(rng.integers(7))
        if kind <= 1:
            parts.insert(place, _choose(rng, _OPCODES))
        elif kind == 2:
            parts[place] = _choose(rng, _OPCODES)
        elif kind == 3 and len(parts) > 1:
            del parts[place]
        elif kind == 4:
            parts[place:place] = [parts[place]] * int(rng.integers(1, 300))
        elif kind == 5:
            other = int(rng.integers(len(parts)))
            parts[place], parts[other] = parts[other], parts[place]
        else:  # tuples of tuples, or lists of one list
            depth = int(rng.integers(2, 100))
            parts.insert(
                place, b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(depth))
            )
    return b"".join(parts)
