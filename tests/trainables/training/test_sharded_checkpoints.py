"""Damaged checkpoints of sharded modules are refused, and those that cannot be written are errors of all ranks."""

import errno
import io
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import sharded
from searchlight.trainables.filesystem.paths import compute_digest
from searchlight.trainables.filesystem.storage_errors import UnreadableError
from tests.trainables.training.sharded_tasks import SETTINGS, make_split, stop_and_save
from tests.trainables.training.trials import flip_bit


def refuse_to_load(path: Path, reason: str) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=reason):
        checkpoint.load(path)


def serialize(state: dict[str, Any]) -> bytes:
    torch.save(state, buffer := io.BytesIO())
    return buffer.getvalue()


class Dangerous:
    def __reduce__(self) -> Any:
        return print, ("unpickled",)


@pytest.mark.usefixtures("alone")
def test_damaged_sharded_checkpoint_is_refused(pair, tmp_path, capsys):  # H81
    path = tmp_path / "epoch.pt"
    pair.run(stop_and_save, SETTINGS, None, str(path))
    about = path / ".searchlight.json"
    content = about.read_text()
    about.unlink()
    refuse_to_load(path, "must be readable")
    about.write_text(content)
    for name in sorted(json.loads(content)["files"]):
        good = (path / name).read_bytes()
        flip_bit(path / name)
        refuse_to_load(path, f"{name} is corrupt")
        (path / name).write_bytes(good)
    other = {"tensor": {"sharded tensor": "of no file"}}
    for name, crafted, reason in (
        ("state.pt", serialize(other), "must have metadata with each of its tensors, but has not"),
        (".metadata", pickle.dumps(torch.Size([1])), "must have metadata with each of its tensors, but has not"),
        (".metadata", pickle.dumps(Dangerous()), "tensors' places only, but got builtins"),
        (".metadata", b"\x80\x04", "must have metadata that can be read"),
        ("state.pt", pickle.dumps(Dangerous()), "must be a dict of tensors and plain Python values"),
    ):
        good = (path / name).read_bytes()
        (path / name).write_bytes(crafted)
        about.write_text(json.dumps({"files": {**json.loads(content)["files"], name: compute_digest(path / name)}}))
        refuse_to_load(path, reason)
        (path / name).write_bytes(good)
    about.write_text(json.dumps({"files": {}}))
    refuse_to_load(path, "must have .metadata and state.pt, but has no .metadata")
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EIO, UnreadableError, rf"\[Errno {errno.EIO}\] as the disk says: '{{path}}'"),
        (errno.ENOENT, checkpoint.CheckpointError, "{path} cannot be read: .*as the disk says"),
    ],
)
def test_tensors_that_the_disk_does_not_give_are_no_damage(pair, tmp_path, monkeypatch, number, kind, message):
    path = tmp_path / "epoch.pt"
    pair.run(stop_and_save, SETTINGS, None, str(path))

    def refuse(*_: Any) -> None:
        raise OSError(number, "as the disk says")

    monkeypatch.setattr(FileSystemReader, "read_data", refuse)
    with pytest.raises(kind, match=message.format(path=path)):
        sharded.fill(checkpoint.load(path), {})


def save_apart(rank: int, folder: Path) -> str:
    return try_to_save(make_split(rank, SETTINGS), str(folder / f"node-{rank}" / "epoch.pt"))


def test_checkpoint_in_folders_of_two_nodes_is_refused(pair, tmp_path):
    for message in pair.run(save_apart, tmp_path):
        assert "all workers of a trial must write to one folder" in message
        assert f"{tmp_path}/node-0/epoch.pt.tmp does not have __1_0.distcp of another worker" in message
    assert not (tmp_path / "node-0" / "epoch.pt").exists()


def save_badly(rank: int, path: str, number: int) -> str:
    training = make_split(rank, SETTINGS)

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    with pytest.MonkeyPatch.context() as patch:
        if number and rank == 1:
            patch.setattr(FileSystemWriter, "write_data", refuse)
        return try_to_save(training, path)


def try_to_save(training: Any, path: str) -> str:
    try:
        training.save(Path(path))
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def test_folder_that_cannot_be_written_is_an_error_of_all_ranks(pair, tmp_path):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "epoch.pt"
    for message in pair.run(save_badly, str(path), 0):
        assert re.fullmatch(rf"UnwritableError: \[Errno \d+\] .*: '{path}'", message)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.ESTALE])
def test_disk_that_refuses_one_rank_is_an_error_of_all(pair, tmp_path, number):
    for message in pair.run(save_badly, str(tmp_path / "epoch.pt"), number):
        assert message == f"UnwritableError: [Errno {number}] {os.strerror(number)}: '{tmp_path}/epoch.pt'"
    assert not [*tmp_path.iterdir()], "no part takes room"


def test_checkpoint_that_is_too_large_for_one_rank_fails_all(pair, tmp_path):
    for message in pair.run(save_badly, str(tmp_path / "epoch.pt"), errno.EFBIG):
        assert message.startswith("OSError: checkpoint could not be written: ")
