"""Runs on disks that are full or read-only, and interrupted; `python -m tests.faults` does many."""

import pytest

from tests import faults

pytestmark = pytest.mark.system


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> faults.Runs:
    return faults.Runs(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def mounts() -> None:
    if not faults.can_mount():
        pytest.skip("mounting is not permitted")


def test_ctrl_c_while_importing(runs):
    assert runs.interrupt(0.0).startswith("interrupted (")


def test_a_limit_of_file_sizes(runs):
    # Enough for config.json and the log's first lines.
    assert runs.limit_files(3000) in ("no checkpoint yet, start over", "is safe, continue")


def test_a_full_disk(runs, mounts):
    # A checkpoint takes about 100 kB, now and then more: what Orbax writes depends on threads.
    assert runs.fill_disk(300_000) == "is safe, continue"


def test_a_disk_that_is_read_only(runs, mounts):
    runs.write_protect()


def test_standard_output_that_is_full(runs):
    runs.fill_output()
