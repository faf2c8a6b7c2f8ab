"""The local copy of a search in a bucket, and what is uploaded of it."""

import fcntl
import tempfile

from searchlight.search.folder.locations import LOCK, PREFIX, process_folder
from searchlight.search.folder.uploader import Uploader
from searchlight.search.folder.working_copy import downloaded_copy
from searchlight.trainables.filesystem.paths import RemotePath, parse_path


def test_uploader_copies_changes_and_reports_failures(s3, tmp_path, monkeypatch):
    folder, to = tmp_path / "one", parse_path(s3) / "searches" / "one"
    (folder / "code").mkdir(parents=True)
    (folder / "search.yaml").write_text("trials: 1")
    (folder / "code" / "task.py").write_text("pass")
    (folder / "report.html.7.tmp").write_text("half")
    uploader = Uploader(folder, to)
    uploader.copy()
    assert to.list_files() == [], "what is there when it begins came from the bucket"
    (folder / "search.yaml").write_text("trials: 12")
    (folder / "code").rename(folder / "code-1")
    (folder / "ray").mkdir()
    (folder / "ray" / "log").write_text("of this machine")
    (folder / "code-1" / "ray").mkdir()
    (folder / "code-1" / "ray" / "task.py").write_text("pass")
    (to / "code" / "task.py").write_text("pass")
    told_ = []

    def refuse(path, content):
        raise OSError(f"{path}: no room")

    with uploader.flush_on_exit(told_.append):
        uploader.copy()
        assert to.list_files() == ["code-1/ray/task.py", "code-1/task.py", "search.yaml"]
        (folder / "search.yaml").unlink()
        uploader.copy()
        assert to.list_files() == ["code-1/ray/task.py", "code-1/task.py"]
        (folder / "search.yaml").write_text("trials: 3")
        monkeypatch.setattr(RemotePath, "write_bytes", refuse)
    assert told_ == [f"{to} cannot be written: {to / 'search.yaml'}: no room; what has changed is not there"]


def test_folder_of_a_killed_driver_is_removed_by_the_next(tmp_path, monkeypatch, s3):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used = tmp_path / f"{PREFIX}left", tmp_path / f"{PREFIX}used"
    for folder in (left, used):
        (folder / "one").mkdir(parents=True)
        (folder / LOCK).touch()
    with open(used / LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process_folder.cache_clear()
        with downloaded_copy(parse_path(s3) / "searches" / "one") as folder:
            assert folder.is_dir()
            assert folder.name == "one"
    assert not folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([used.name, folder.parent.parent.name])
    process_folder.cache_clear()
