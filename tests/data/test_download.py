"""`download` and `load` by name, against a server that misbehaves."""

import functools
import hashlib
import http.server
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from jaxgnn import data
from jaxgnn.data import DataError
from jaxgnn.data.cache import downloads
from jaxgnn_cli import main
from tests.support.processes import start_python

pytest.importorskip("pooch")
CONTENT = np.random.default_rng(0).bytes(200_000)
FILES = {"a.bin": (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())}


class Handler(http.server.BaseHTTPRequestHandler):
    """Paths begin with what is to happen."""

    def do_GET(self):
        _, what, *_ = self.path.split("/")
        self.server.requests.append((what, self.headers.get("Range")))
        begin = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")
        content = CONTENT[int(begin) :]
        if what == "forbidden":
            return self.send_error(403)
        if what == "redirect":
            self.send_response(302)
            self.send_header("Location", "/good/a.bin")
            return self.end_headers()
        if what in ("old", "changed", "long"):  # no byte ranges
            content = CONTENT
        partial = what not in ("old", "changed", "long") and "Range" in self.headers
        self.send_response(206 if partial else 200)
        if partial:
            last = len(CONTENT) - 1
            self.send_header("Content-Range", f"bytes {begin}-{last}/{len(CONTENT)}")
        if what == "changed":
            content = bytes(len(CONTENT))
        if what == "long":
            content = CONTENT + b"more"
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if what == "truncated":
            content = content[: len(content) // 2]
        if what == "slow":
            self.wfile.write(content[:150_000])
            self.wfile.flush()
            return time.sleep(5)
        if what == "stalled":
            self.wfile.write(content[:1000])
            self.wfile.flush()
            return time.sleep(0.6)
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.requests = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def fetch(server, tmp_path, monkeypatch):
    """Downloads from the addresses that are named; returns what is in the directory."""
    monkeypatch.setattr(downloads, "TIMEOUT", 0.3)

    def run(*addresses):
        urls = tuple(f"http://127.0.0.1:{server.server_port}/{what}/" for what in addresses)
        source = downloads.Source(urls, FILES, "none", "nobody")
        monkeypatch.setattr(downloads, "SOURCES", {"set": source})
        directory = data.download("set", tmp_path)
        assert directory == tmp_path / "set"
        return (directory / "a.bin").read_bytes()

    return run


@pytest.mark.parametrize("what", ["good", "redirect", "old"])
def test_files_arrive_once(fetch, server, tmp_path, what):
    assert fetch(what) == CONTENT
    count = len(server.requests)
    assert fetch(what) == CONTENT and len(server.requests) == count
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("forbidden", "status 403"),
        ("truncated", "ended after 100,000 of 200,000 bytes; call again to go on"),
        ("stalled", "timed out"),
        ("changed", "the file's checksum is not the pinned one"),
        ("long", "more than the 200,000 bytes"),
    ],
)
def test_what_fails_says_why_and_leaves_nothing_wrong(fetch, tmp_path, what, reason):
    with pytest.raises(DataError, match=rf"a.bin: cannot be downloaded \(.*/{what}/: .*{reason}"):
        fetch(what)
    assert not (tmp_path / "set" / "a.bin").exists()
    assert fetch(what, "good") == CONTENT  # the next address


def test_it_goes_on_where_it_ended(fetch, server, tmp_path):
    """In a later call, as after a kill; where the server has no ranges, from the start."""
    for what in ("good", "old"):
        with pytest.raises(DataError, match="ended after 100,000"):
            fetch("truncated")
        server.requests.clear()
        assert fetch(what) == CONTENT
        assert server.requests == [(what, "bytes=100000-")]
        (tmp_path / "set" / "a.bin").unlink()
    part = tmp_path / "set" / "a.bin.part"
    part.write_bytes(b"x" * 300_000)  # longer than the file: no part of it
    assert fetch("good") == CONTENT
    part.write_bytes(b"x" * 5)  # of another file: found by the checksum, and begun anew
    (tmp_path / "set" / "a.bin").unlink()
    with pytest.raises(DataError, match="checksum"):
        fetch("good")
    assert fetch("good") == CONTENT


@pytest.mark.system
def test_a_killed_download_goes_on(fetch, server, tmp_path):
    """Killed while the server stalls: nothing is under the file's name, and a later call asks for
    the rest alone."""
    url = f"http://127.0.0.1:{server.server_port}/slow/"
    program = f"""
from jaxgnn.data.cache import downloads
downloads.SOURCES = {{"set": downloads.Source(({url!r},), {FILES!r}, "none", "nobody")}}
downloads.download("set", {str(tmp_path)!r})
"""
    child = start_python("-c", program)
    part = tmp_path / "set" / "a.bin.part"
    end = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 1 << 16):
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    child.communicate()
    assert not (tmp_path / "set" / "a.bin").exists()
    size = part.stat().st_size
    server.requests.clear()
    assert fetch("good") == CONTENT
    assert server.requests == [("good", f"bytes={size}-")]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["a.bin"]


def test_two_at_once(fetch, server, tmp_path):
    threads = [threading.Thread(target=functools.partial(fetch, "good")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "set" / "a.bin").read_bytes() == CONTENT and len(server.requests) == 1


def test_load_by_name(data_directory, server, tmp_path, monkeypatch):
    """Files placed by hand are taken; a path of that name comes before a download."""
    monkeypatch.setattr(downloads.urllib.request, "urlopen", None)  # nothing is fetched
    shutil.copytree(data_directory / "cora", tmp_path / "root" / "cora")
    loaded = data.load("cora", root=tmp_path / "root")
    assert (loaded.num_nodes, loaded.num_classes) == (2708, 7)
    monkeypatch.chdir(tmp_path / "root")
    assert data.load("cora").num_nodes == 2708
    file = data_directory / "minesweeper" / "minesweeper.npz"
    (tmp_path / "root" / "minesweeper").mkdir()
    shutil.copy(file, tmp_path / "root" / "minesweeper")
    assert data.load("minesweeper", root=tmp_path / "root").num_nodes == 10_000


def test_other_names(capsys):
    with pytest.raises(
        DataError, match=r"citeseer: .*no dataset of that name.*planetoid has data/"
    ):
        data.load("citeseer")
    with pytest.raises(DataError, match="digits: root: expected None but for cora, minesweeper"):
        data.load("digits", root=".")
    for name, message in (("pubmed", "ind.pubmed"), ("nothing", "there are cora, minesweeper")):
        assert main(["download", name]) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1
