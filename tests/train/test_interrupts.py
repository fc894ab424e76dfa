"""Ctrl-C in every phase of a process."""

import signal
import time

import pytest

from tests.support.processes import start_python

BEGIN = """\
from jaxgnn_cli.interrupts import watch; import signal, hashlib, time
with watch() as w:
"""
PHASES = {
    # A call that does not come back to Python, as a compilation.
    "native": "  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    # Code that hides exceptions, as some imports do.
    "swallowing": "  while True:\n    try: time.sleep(0.1)\n    except BaseException: pass",
    "waiting": "  time.sleep(100)",
}


def interrupted(code: str, times: int = 1) -> tuple[int, str]:
    """The status and stderr of a process that gets SIGINT so many times, and its answers."""
    process = start_python("-c", f"{BEGIN}  print('ready', flush=True)\n{code}")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(times):
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=5)
    return process.returncode, err


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_at_once_with_130(phase):
    assert interrupted(PHASES[phase]) == (130, "jaxgnn: interrupted\n")


def test_a_second_ctrl_c_is_not_postponed():
    postponed = (
        "  signal.signal(signal.SIGINT, lambda *_: None)\n  w.advice = lambda: 'a is safe'\n"
    )
    code = postponed + PHASES["native"]
    assert interrupted(code, 2) == (130, "jaxgnn: interrupted; a is safe\n")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += BEGIN + "  signal.raise_signal(signal.SIGINT)\nprint('done')"
    process = start_python("-c", code)
    assert process.communicate(timeout=20) == ("done\n", "")
    assert process.returncode == 0
