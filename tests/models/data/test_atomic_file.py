"""A file is replaced as a whole, or stays as it was."""

import pytest

from searchlight.models.data.atomic_file import open_atomic


def test_written_file_replaces_the_old_one(tmp_path):
    (tmp_path / "name").write_bytes(b"old")
    with open_atomic(tmp_path / "name") as file:
        file.write(b"new")
        assert (tmp_path / "name").read_bytes() == b"old"
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def write_half(path, error):
    with open_atomic(path) as file:
        file.write(b"new")
        raise error


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failed_write_leaves_the_old_file_alone(tmp_path, error):
    (tmp_path / "name").write_bytes(b"old")
    with pytest.raises(error):
        write_half(tmp_path / "name", error)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
