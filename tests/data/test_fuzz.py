"""The fuzz command: 200 files a reader, and that what goes wrong is seen."""

import os
import re

import pytest

from jaxgnn import data
from tests.fuzz.__main__ import MAX_BYTES, Options, complaint, run
from tests.fuzz.cases import make_case
from tests.fuzz.formats import READERS
from tests.fuzz.pool import Worker

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="no /proc"),
    pytest.mark.few(1),
]

FILES = 200


# The others run apart, to keep the tests of the README short.
SHORT = ("edge_list", "matrix_market", "planetoid", "shchur", "heterophilous", "graphsaint")
SHORT += ("graphsaint_multilabel", "reddit", "ogb", "ogb_edges", "tables")


@pytest.mark.parametrize(
    "reader",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.system) for name in READERS],
)
def test_mutated_files(tmp_path, request, reader):
    seed = int(request.config.option.hypothesis_seed or 0)  # a new one in every run of CI
    options = Options(reader, FILES, seed, workers=1, seconds=60.0, failures=tmp_path)
    counts, _, failures = run(reader, options)
    assert not failures and counts.total() == FILES
    assert counts["read"] and counts["refused"] > FILES // 4, counts


def test_every_reader_is_there():
    readers = {name.removeprefix("read_") for name in data.__all__ if name.startswith("read_")}
    assert readers - {"off", "obj"} <= READERS.keys() and "meshes" in READERS


def test_a_case_is_a_function_of_its_number():
    for reader in READERS:
        cases = [make_case(reader, 3, number) for number in (0, 7, 7)]
        assert cases[1] == cases[2] != cases[0]


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.stop()


@pytest.mark.parametrize(
    ("call", "seconds", "expected"),
    [
        ("__import__('os').abort()", 60, "died: the process ended with status -6"),
        ("__import__('time').sleep(100)", 0.5, "timeout: no answer in"),
        ("bytearray(1 << 28)", 60, "AttributeError"),
        ("bytearray(1 << 40)", 60, "MemoryError"),
        ("1 / 0", 60, "ZeroDivisionError: division by zero"),
        ("data.read_edge_list('none')", 60, None),
        ("__import__('numpy').float32(1e300) + data.read_edge_list('none')", 60, "a warning"),
    ],
)
def test_what_goes_wrong_is_seen(worker, call, seconds, expected):
    worker.ask({"call": "data.read_edge_list('none')", "max_bytes": MAX_BYTES}, 60)  # started
    problem = complaint(worker.ask({"call": call, "max_bytes": MAX_BYTES}, seconds))
    assert problem is expected is None or problem.startswith(expected), problem


def test_peaks_and_messages_are_seen(worker):
    call = "(bytearray(1 << 28), data.read_edge_list('none'))"
    answer = worker.ask({"call": call, "max_bytes": MAX_BYTES}, 60)
    assert re.match(r"a peak of 2[3-7]\d MiB", complaint(answer))  # less what was free by then
    answer |= {"peak_bytes": 0, "message": "x" * 301}
    assert complaint(answer).startswith("a message of 301 characters")
    assert complaint(answer | {"message": "a\nb"}).startswith("a message of 3 characters")
