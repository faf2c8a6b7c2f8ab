"""Publish checkpoint directories whole or not at all, and verify them when they are read."""

import pytest

from searchlight.trainables.checkpoint import CheckpointError, delete, directory
from searchlight.trainables.context import Context
from searchlight.trainables.filesystem import paths
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.filesystem.storage_errors import UnwritableError


@pytest.fixture
def published(tmp_path):
    """A directory to which two ranks have added."""
    parts = []
    for number in range(2):
        part = tmp_path / f"part-{number}"
        (part / "sub").mkdir(parents=True)
        (part / "sub" / f"{number}.txt").write_text(str(number))
        parts.append(directory.add_part(part, tmp_path / "c"))
    assert parts == [{"sub/0.txt": ""}, {"sub/1.txt": ""}]
    directory.publish_parts(part, tmp_path / "c", parts, {"epoch": 4}, Context())
    assert not (tmp_path / "c.tmp").exists()
    return tmp_path / "c"


def test_directory_can_be_read_published_again_and_deleted(published, tmp_path):
    assert directory.read(published)["epoch"] == 4
    assert sorted(path.name for path in published.rglob("*.txt")) == ["0.txt", "1.txt"]
    part = directory.add_part(tmp_path / "part-0", published)
    with pytest.raises(OSError, match=r"must write to one folder, but .*c\.tmp does not have lost\.pt of another"):
        directory.publish_parts(None, published, [part, {"lost.pt": ""}], {"epoch": 5}, Context())
    assert directory.read(published)["epoch"] == 4
    directory.publish_parts(None, published, [part], {"epoch": 5}, Context())
    assert directory.read(published)["epoch"] == 5
    assert not (published / "sub" / "1.txt").exists()
    for _ in range(2):
        delete(published)
        assert not published.exists()


@pytest.mark.parametrize("damage", ["changed", "gone", "without its list", "never there"])
def test_directory_that_is_not_as_published_is_refused(published, damage):
    file = published / "sub" / "1.txt"
    if damage == "changed":
        file.write_text("2")
    elif damage == "gone":
        file.unlink()
    elif damage == "without its list":
        (published / directory.ABOUT).unlink()
    else:
        published = published.with_name("d")
    with pytest.raises(CheckpointError, match=str(published)):
        directory.read(published)


@pytest.mark.parametrize("first", ["state", "state/0.txt"])
def test_file_and_folder_of_one_name_are_no_fault_of_the_storage(tmp_path, first):
    for rank, name in enumerate([first, {"state": "state/0.txt", "state/0.txt": "state"}[first]]):
        (tmp_path / str(rank) / name).parent.mkdir(parents=True)
        (tmp_path / str(rank) / name).write_text(name)
    directory.add_part(tmp_path / "0", tmp_path / "c")
    with pytest.raises((FileExistsError, IsADirectoryError), match="state"):  # no UnwritableError
        directory.add_part(tmp_path / "1", tmp_path / "c")


def test_file_in_place_of_the_folder_is_a_fault_of_the_storage(tmp_path):
    (tmp_path / "c.tmp").write_text("in the way")
    (tmp_path / "part").mkdir()
    with pytest.raises(UnwritableError):
        directory.add_part(tmp_path / "part", tmp_path / "c")


def test_file_of_several_ranks_is_assigned_to_the_last():
    assert directory.assign_files([{"a": "0", "b": "0"}, {}, {"b": "2"}]) == [{"a": "0"}, {}, {"b": "2"}]


def test_directory_in_a_bucket_is_refused_until_it_is_complete(s3, tmp_path):
    (tmp_path / "state").write_text("state")
    path = parse_path(s3) / "c"
    paths.upload(tmp_path, path)
    with pytest.raises(CheckpointError, match=f"{path} must be readable"):
        directory.read(path)
    directory.publish_parts(tmp_path, path, [directory.add_part(tmp_path, path)], {"epoch": 4}, Context())
    assert directory.read(path)["epoch"] == 4
