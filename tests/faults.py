"""Faults injected into training runs: kills, interrupts, disks that are full or read-only.

    python -m tests.faults --kills 50 --interrupts 20 --disks 20 --seed 0

Each fault must give its exit status and at most one line on stderr, and the run, continued, must
end as one that was left alone: the same metrics, and checkpoints whose bits are the same. Prints
what was done and how often; ends with status 1 at the first that is not so. The tests run a few.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.processes import start
from tests.support.small_sets import small

EPOCHS = 200
# Every kind of state: batch statistics, and dropout of the input and of MaxK's kept entries.
OPTIONS = [
    *["small.npz", "--model", "sage", "--hidden", "8", "--norm", "batch", "--input-layer"],
    *["--activation", "maxk", "--k", "3", "--input-dropout", "0.2", "--dropout", "0.3"],
    *["--epochs", str(EPOCHS), "--patience", "0", "--checkpoint-interval", "10"],
]
SECONDS_TO_STOP = 5  # after Ctrl-C
FULL = "No space left on device"
TOO_LARGE = "File too large"


@dataclasses.dataclass
class Outcome:
    """How a process ended."""

    status: int
    err: str

    def expect(self, status: int, *texts: str) -> Outcome:
        """Asserts the status, and one line on stderr, with these texts, unless all went well."""
        lines = self.err.splitlines()
        assert self.status == status, (self.status, self.err)
        assert len(lines) == (status != 0 or bool(texts)), self.err
        assert all(line.startswith("jaxgnn: ") for line in lines), self.err
        assert all(text in self.err for text in texts), (texts, self.err)
        return self

    def expect_full(self, reason: str) -> str:
        """Asserts one line that says why, and what is safe; returns what the run did."""
        if self.status == 0:
            self.expect(0, *["no plot: ", reason] * bool(self.err))
            return "no plot" if self.err else "all written"
        self.expect(1, reason)
        assert re.match(rf"jaxgnn: [^:]*[^: ]: {reason}; ", self.err), f"no path: {self.err}"
        for text in ("nothing was trained", "no checkpoint yet, start over", "is safe, continue"):
            if text in self.err:
                return text
        raise AssertionError(self.err)


class Runs:
    """Runs of one configuration in a directory, compared with one that was left alone."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.count = 0
        small(directory / "small.npz")
        # The first process writes JAX's cache; the others read it, so that all run one program.
        self._run(*OPTIONS, "--run-directory", "first", first=True).expect(0)
        self.whole = result(directory / "first")
        self.seconds = 0.0

    def measure(self) -> None:
        """Times a run, which the moments of kills and interrupts are shares of."""
        begin = time.monotonic()
        name, arguments = self.new()
        self._run(*arguments).expect(0)
        self.seconds = time.monotonic() - begin
        assert result(self.directory / name) == self.whole

    def start(
        self, *arguments: str, first: bool = False, prefix: tuple[str, ...] = (), **options: Any
    ) -> subprocess.Popen[str]:
        """`jaxgnn train` in a process."""
        return start(
            *prefix,
            *command(*arguments),
            directory=self.directory,
            **{
                "JAX_COMPILATION_CACHE_DIR": str(self.directory / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if first else "1e9",
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
                "JAXGNN_DETERMINISTIC": "1",
            },
            **options,
        )

    def new(self) -> tuple[str, list[str]]:
        """A run directory that is not there, and the arguments of a run in it."""
        self.count += 1
        name = f"run{self.count}"
        return name, [*OPTIONS, "--run-directory", name]

    def arguments(self, name: str) -> list[str]:
        """What continues a run, or starts it where nothing was written."""
        if (self.directory / name / "config.json").exists():
            return ["--resume", name]
        return [*OPTIONS, "--run-directory", name]

    def finish(self, name: str) -> None:
        """Continues a run to its end, and compares it with the one that was left alone."""
        self._run(*self.arguments(name)).expect(0)
        assert result(self.directory / name) == self.whole, name
        shutil.rmtree(self.directory / name)

    def _run(self, *arguments: str, **options: Any) -> Outcome:
        return wait(self.start(*arguments, **options))

    # The faults.

    def kill(self, rng: random.Random, times: int) -> int:
        """Kills a run again and again; returns how often it was alive to be killed."""
        name, _ = self.new()
        killed = 0
        for _ in range(times):
            process = self.start(*self.arguments(name))
            try:
                process.wait(rng.uniform(0, self.seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            process.communicate()
            assert process.returncode in (0, -signal.SIGKILL)
        self.finish(name)
        return killed

    def interrupt(self, moment: float) -> str:
        """Sends SIGINT after this share of a run's time; returns what the process said."""
        name, arguments = self.new()
        begin = time.monotonic()
        process = self.start(*arguments)
        while threads(process) < 2:  # SIGINT is Python's until the command's first line
            time.sleep(0.002)
        time.sleep(max(0, begin + moment * self.seconds - time.monotonic()))
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        outcome = wait(process)
        seconds = time.monotonic() - begin
        assert seconds < SECONDS_TO_STOP, (seconds, outcome)
        said = "ended before"
        if outcome.status != 0:
            said = outcome.expect(130, "interrupted").err.strip().removeprefix("jaxgnn: ")
        self.finish(name)
        return f"{said} ({seconds:.2f} s)"

    def fill_disk(self, size: int) -> str:
        """Runs on a file system of this many bytes, then with more; returns how it ended."""
        name, _ = self.new()
        start_or_resume = (
            f"if [ -e disk/{name}/config.json ]; then {shell('--resume', f'disk/{name}')}; "
            f"else {shell(*OPTIONS, '--run-directory', f'disk/{name}')}; fi"
        )
        outcome = self._in_mounts(
            f"mkdir -p disk && mount -t tmpfs -o size={size} faults disk",
            f"{shell(*OPTIONS, '--run-directory', f'disk/{name}')} 2> {name}.err",
            f"echo $? > {name}.status; mount -o remount,size=64m disk",
            f"{start_or_resume} && cp -r disk/{name} .",
        )
        outcome.expect(0)
        assert result(self.directory / name) == self.whole
        first = Outcome(
            int((self.directory / f"{name}.status").read_text()),
            (self.directory / f"{name}.err").read_text(),
        )
        return first.expect_full(FULL)

    def limit_files(self, size: int) -> str:
        """Runs with files of at most this many bytes, then without; returns how it ended."""
        name, arguments = self.new()

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        said = self._run(*arguments, preexec_fn=limit).expect_full(TOO_LARGE)
        self.finish(name)
        return said

    def write_protect(self) -> None:
        """Continues a run on a file system that is read-only."""
        name, arguments = self.new()
        self._run(*arguments, "--epochs", "20").expect(0)
        mount = f"mount --bind {name} {name} && mount -o remount,ro,bind {name}"
        more = ["--resume", name, "--epochs", str(EPOCHS)]
        reason = "Read-only file system"
        self._in_mounts(mount, shell(*more)).expect(1, f"{name}/lock: {reason}")
        self._run(*more).expect(0)
        assert result(self.directory / name) == self.whole

    def fill_output(self) -> None:
        """Runs with standard output that is full."""
        _, arguments = self.new()
        with open("/dev/full", "w") as full:
            self._run(*arguments, stdout=full).expect(1, f"standard output: {FULL}; there is no")

    def _in_mounts(self, *script: str) -> Outcome:
        """A shell script in a mount namespace of its own."""
        return wait(self.start(prefix=("unshare", "-rm", "sh", "-c", "\n".join(script))))


def can_mount() -> bool:
    """Whether a process may mount file systems in a namespace of its own."""
    script = "mount -t tmpfs faults /mnt"
    try:
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def command(*arguments: str) -> list[str]:
    """`jaxgnn train`, as a user starts it."""
    return [sys.executable, "-m", "jaxgnn_cli", "train", *arguments]


def shell(*arguments: str) -> str:
    """The same for a shell, without its output."""
    return f"{shlex.join(command(*arguments))} > /dev/null"


def threads(process: subprocess.Popen[str]) -> int:
    """The threads of a process that has not ended."""
    assert process.poll() is None, process.communicate()
    return len(os.listdir(f"/proc/{process.pid}/task"))


def wait(process: subprocess.Popen[str]) -> Outcome:
    """Waits for a process's end."""
    err = process.communicate(timeout=600)[1]
    return Outcome(process.returncode, err)


def result(run: Path) -> dict[str, Any]:
    """What a run came to, times apart; the checkpoint's checksum is over all bits of its state."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((run / "summary.json").read_text())
    names = ("test_score", "val_score", "best_epoch", "epochs", "stopped")
    progress = run / "checkpoints" / str(summary["epochs"]) / "progress" / "metadata"
    return {
        "rows": [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines],
        "summary": {name: summary[name] for name in names},
        "checkpoint": json.loads(progress.read_text()),
    }


def main() -> None:
    """Injects as many faults as asked for, and prints their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 50), ("interrupts", 20), ("disks", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(Path(directory))
        runs.measure()
        print(f"an undisturbed run: {runs.seconds:.1f} s, {EPOCHS} epochs", flush=True)
        for i in range(options.interrupts):
            moment = (i + rng.random()) / options.interrupts
            print(f"SIGINT at {moment:4.0%}: {runs.interrupt(moment)}", flush=True)
        killed = 0
        while killed < options.kills:
            killed += runs.kill(rng, min(5, options.kills - killed))
            print(f"kill -9: {killed}, all continued bit for bit", flush=True)
        outcomes: Counter[str] = Counter()
        mounts = can_mount()
        if not mounts:
            print("mounting is not permitted: file-size limits alone", flush=True)
        for i in range(options.disks):
            size = int(2 ** rng.uniform(12, 19))
            if mounts and i % 2:
                outcome = f"full disk: {runs.fill_disk(size)}"
            else:
                outcome = f"file-size limit: {runs.limit_files(size >> 2)}"
            print(f"{size:,} bytes, {outcome}", flush=True)
            outcomes[outcome] += 1
        if options.disks:
            runs.fill_output()
            outcomes["full standard output"] += 1
            if mounts:
                runs.write_protect()
                outcomes["read-only file system"] += 1
        for outcome, count in sorted(outcomes.items()):
            print(f"{outcome}: {count}", flush=True)


if __name__ == "__main__":
    main()
