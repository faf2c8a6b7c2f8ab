"""Trackers that write files, read back with the readers of their libraries."""

import json
import math
import os
import struct
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from searchlight.search.errors import UsageError
from searchlight.search.tracking.errors import TrackingError
from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.tracker import create_tracker
from searchlight.search.tracking.uri import check_tracking
from tests.search.stored_studies import Search

BLOCK = 2**15
END = make_search_end("FINISHED", "")


def track(search, say=lambda line: None):
    config = TrackingOptions(**{name: getattr(search.config, name) for name in TrackingOptions.model_fields})
    options = search.study.metadata["config"]
    tracker = create_tracker(config, options, {}, search.study, say)
    search.observers = [tracker]
    return tracker


def end(search, tracker, running=()):
    for number in running:
        search.tell(number, is_over=True)
    tracker.finish(END, [], 120.0)


def play(search):
    """A search with a completed trial, one that is interrupted, and a run that confirms the first."""
    tracker = track(search)
    number = search.begin(lr=0.1, inner={"depth": 3}, precision="bf16")
    for epoch, score in enumerate((0.25, math.nan, 0.5), start=1):
        search.report(number, epoch, score, **{"train/loss": epoch / 10})
    search.end(number, "completed", "reached its last epoch")
    running = search.begin(lr=0.2)
    search.report(running, 1, 0.125)
    search.confirm(0, 7, 0.75)
    end(search, tracker, [running])
    return running


def go_on(search, running):
    """Another driver, to the end of the trial that was interrupted."""
    tracker = track(search)
    search.report(running, 2, 0.375)
    search.end(running, "pruned", "not among the best")
    end(search, tracker)


@pytest.fixture
def search(tmp_path, request):
    search = Search(tmp_path, tracker=request.param)
    yield search
    search.store.close()


@pytest.mark.parametrize("search", ["tensorboard"], indirect=True)
def test_tensorboard_has_a_run_for_each_trial(search):
    def read(run):
        accumulator = EventAccumulator(str(folder / run))
        accumulator.Reload()
        return accumulator

    def curve(run, name="val/score"):
        return [(point.step, point.value) for point in read(run).Scalars(name)]

    def outcome(run):
        return read(run).Tensors("outcome/text_summary")[0].tensor_proto.string_val[0].decode()

    def hparams(run):
        content = read(run).summary_metadata["_hparams_/session_start_info"].plugin_data.content
        values = metadata.parse_session_start_info_plugin_data(content).hparams
        return {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}

    folder = search.config.local_path / "tensorboard"
    running = play(search)
    assert sorted(path.name for path in folder.iterdir()) == ["confirm-002", "trial-000", "trial-001"]
    (_, first), (_, missing), (_, last) = curve("trial-000")
    assert (first, math.isnan(missing), last) == (0.25, True, 0.5)
    assert [round(value, 6) for _, value in curve("trial-000", "train/loss")] == [0.1, 0.2, 0.3]
    assert curve("trial-000", "best/val/score") == [(0, 0.5)]
    assert curve("confirm-002", "confirmed/val/score") == [(0, 0.75)]
    assert hparams("trial-000") == {"lr": 0.1, "inner.depth": 3.0, "precision": "bf16"}
    assert outcome("trial-000") == "completed: reached its last epoch"
    assert outcome("trial-001") == "interrupted: the search was stopped"
    untouched = {path: path.stat().st_mtime_ns for path in (folder / "trial-000").iterdir()}
    go_on(search, running)
    assert curve("trial-001") == [(1, 0.125), (2, 0.375)]
    assert outcome("trial-001") == "pruned: not among the best"
    assert {path: path.stat().st_mtime_ns for path in (folder / "trial-000").iterdir()} == untouched


def scan_log(data):
    """Yield the records of a log in the format of LevelDB, after 7 bytes of wandb, which has no reader any more."""
    at, record = 7, b""
    while at < len(data):
        if BLOCK - at % BLOCK < 7:  # the rest of a block has no room for a head
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(folder):
    """Return config, summary, rows and exit code of each offline run, by its name."""
    from wandb.proto import wandb_internal_pb2

    runs = {}
    for file in Path(folder).glob("offline-run-*/*.wandb"):
        config, summary, rows, name, code = {}, {}, [], "", None
        for data in scan_log(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                name = record.run.display_name
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                about = record.run.project, record.run.run_group, record.run.job_type
            elif record.HasField("history"):
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                rows.append({key: value for key, value in row.items() if not key.startswith("_")})
            elif record.HasField("summary"):
                items = record.summary.update
                summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            elif record.HasField("exit"):
                code = record.exit.exit_code
        assert name not in runs
        runs[name] = {"config": config, "summary": summary, "rows": rows, "code": code, "about": about}
    return runs


@pytest.mark.parametrize("search", ["wandb"], indirect=True)
def test_wandb_has_a_run_for_each_trial(search, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    running = play(search)
    runs = read_wandb(search.config.local_path / "wandb")
    assert sorted(runs) == ["confirm-002", "trial-000", "trial-001"]
    assert runs["trial-000"]["about"] == ("arc", "one", "search")
    assert runs["confirm-002"]["about"] == ("arc", "one", "confirm")
    first = runs["trial-000"]
    assert {name: first["config"][name] for name in ("lr", "inner", "precision")} == {
        "lr": 0.1,
        "inner": {"depth": 3},
        "precision": "bf16",
    }
    assert [row["epoch"] for row in first["rows"]] == [1, 2, 3]
    assert [row["train/loss"] for row in first["rows"]] == [0.1, 0.2, 0.3]
    assert (first["rows"][0]["val/score"], first["rows"][2]["val/score"]) == (0.25, 0.5)
    ended = {"outcome": "completed", "reason": "reached its last epoch", "best/val/score": 0.5}
    assert {name: first["summary"][name] for name in ended} == ended
    assert (first["code"], runs["trial-001"]["code"]) == (0, 1)
    assert runs["trial-001"]["summary"]["outcome"] == "interrupted"
    go_on(search, running)
    again = read_wandb(search.config.local_path / "wandb")
    assert [row["val/score"] for row in again["trial-001"]["rows"]] == [0.125, 0.375]
    assert (again["trial-001"]["summary"]["outcome"], again["trial-001"]["code"]) == ("pruned", 0)
    assert again["trial-000"] == first


@pytest.mark.parametrize("search", ["none"], indirect=True)
def test_search_without_a_tracker_writes_no_runs(search):
    before = {*search.config.storage.rglob("*")}
    play(search)
    new = {path.name for path in {*search.config.storage.rglob("*")} - before}
    assert new <= {"study.journal"}


@pytest.mark.parametrize("search", ["tensorboard"], indirect=True)
def test_tracker_that_cannot_write_does_not_end_the_search(search):
    lines, folder = [], search.config.local_path
    (folder / "tensorboard").touch()  # where its folder should be
    tracker = track(search, lines.append)
    number = search.run(0.5)
    with pytest.raises(TrackingError, match=r"tensorboard must take every trial, but .* Nothing is lost: `.*resume"):
        tracker.finish(END, [], 120.0)
    (line,) = lines
    assert line.startswith("tensorboard cannot write the trials: ")
    (folder / "tensorboard").unlink()
    end(search, track(search))
    assert [path.name for path in (folder / "tensorboard").iterdir()] == [f"trial-{number:03d}"]


def test_wandb_online_needs_a_login(tmp_path):
    options = TrackingOptions(storage=tmp_path, name="one", tracker="wandb")
    lacks = {"HOME": str(tmp_path), "WANDB_MODE": "online", "PATH": os.environ["PATH"], "WANDB_DIR": str(tmp_path)}
    with pytest.raises(UsageError) as error:
        check_tracking(options, lacks)
    assert str(error.value).startswith("--tracker wandb must find a login with WANDB_MODE=online, but W&B says: No API")
    assert len(error.value.problems) == 1
    with pytest.raises(UsageError, match=r"W&B says: WANDB_API_KEY invalid: API key must have 40\+ characters, has 3"):
        check_tracking(options, {**lacks, "WANDB_API_KEY": "abc"})
    check_tracking(options, {**lacks, "WANDB_API_KEY": "a" * 40})
    check_tracking(options, {**lacks, "WANDB_MODE": "offline"})


def test_tracker_must_be_known_and_installed(tmp_path, monkeypatch):
    options = TrackingOptions(storage=tmp_path, name="one", tracker="wandb")
    monkeypatch.setattr("searchlight.search.tracking.uri.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--tracker wandb must have the package wandb, but it is not installed"):
        check_tracking(options, {})
    check_tracking(options.model_copy(update={"tracker": "none"}), {})
    (problem,) = options.model_copy(update={"register_": "model"}).find_problems()
    assert problem == "--register must come with --tracker mlflow, which registers models, but got wandb."
