"""Nothing is left of a search once it has ended, however it did: looked for on the machine."""

import shutil
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def temporary():
    """A short path: Ray's sockets lie below it, and theirs may have 107 characters."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", ["ends", "is interrupted while it starts", "is interrupted", "is killed"])
def test_no_process_and_no_temporary_folder_is_left_when_a_search(make_cli, how, temporary):
    cli = make_cli()
    cli.env["RAY_TMPDIR"] = str(temporary)
    epochs = "1" if how == "ends" else "100"
    process = cli.start("toy.py:Toy", "--name", "gone", "--trials", "2", "--set", f"epochs={epochs}", "pause_s=0.2")
    folder = cli.folder / "runs" / "gone"
    deadline = time.monotonic() + 100
    begun = "config" if how == "is interrupted while it starts" else "report/1"
    while not ((folder / "study.journal").exists() and begun in (folder / "study.journal").read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) > 5
    assert len(list(temporary.iterdir())) == 1
    start = time.monotonic()
    if how.startswith("is interrupted"):
        process.send_signal(signal.SIGINT)
    if how == "is killed":
        process.kill()
    _, err = process.communicate(timeout=60)
    if how.startswith("is interrupted"):
        assert time.monotonic() - start < 10, err
    deadline = time.monotonic() + 30
    while left := [pid for pid in started if is_running(pid)] + list(temporary.iterdir()):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert (folder / "ray").exists() == (how == "is killed")  # taken up again, it is removed
