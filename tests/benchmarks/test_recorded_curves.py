import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.search.problems import recorded
from benchmarks.search.problems.recorded import (
    RECORDINGS,
    Run,
    build_schema,
    draw_configs,
    record,
    replayed,
    train_run,
)
from benchmarks.search.problems.table import load_table, save_table


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short(monkeypatch):
    """Two epochs of the small task `features` instead of 27."""
    recording = RECORDINGS["features"]
    fixed = {**recording.fixed, "epochs": 2}
    monkeypatch.setitem(RECORDINGS, "features", replace(recording, fixed=fixed))


@pytest.mark.parametrize("name", RECORDINGS)
def test_drawn_configs_are_valid_and_differ(name):
    recording = RECORDINGS[name]
    space = recording.build_space(precision="bf16", seed=2)
    configs = [space.build_config(values) for values in draw_configs(recording, 5)]
    assert len({config.lr for config in configs}) == 5
    assert all((config.precision, config.seed, config.epochs) == ("bf16", 2, 27) for config in configs)


def test_recording_is_continued_with_what_is_missing(short, tmp_path, monkeypatch):
    file, trained = tmp_path / "curves.parquet", []
    monkeypatch.setitem(RECORDINGS, "features", replace(RECORDINGS["features"], seeds=1))
    monkeypatch.setattr(recorded, "train_run", lambda *args: trained.append(args[-1]) or train_run(*args))
    record("features", file, count=1)
    assert trained == [Run(0, 0, "fp32"), Run(0, 0, "bf16")]
    first = load_table(file)
    record("features", file, count=2)
    assert trained[2:] == [Run(1, 0, "fp32"), Run(1, 0, "bf16")]
    rows = load_table(file)
    assert len(rows) == 4
    assert [row for row in rows if row["number"] == 0] == first
    for row in rows:
        assert len(row["val/loss"]) == len(row["test/loss"]) == 2
        assert np.isfinite(row["val/loss"]).all()
        assert row["seconds"] > 0


def test_training_of_a_run_is_that_of_its_seed_and_precision(short):
    configs = draw_configs(RECORDINGS["features"], 1)
    curves = {
        run: train_run("features", configs, Run(0, *run))["val/loss"] for run in ((0, "fp32"), (1, "fp32"), (0, "bf16"))
    }
    assert curves[0, "fp32"] == train_run("features", configs, Run(0, 0, "fp32"))["val/loss"]
    assert len({tuple(curve) for curve in curves.values()}) == 3


def build_table(file):
    """Two configurations, of which the second diverges in bf16 in its second epoch."""
    recording, rows = RECORDINGS["features"], []
    for number, values in enumerate(draw_configs(recording, 2)):
        for seed in range(2):
            for precision in ("fp32", "bf16"):
                loss = 1.0 + number + 0.1 * seed
                second = math.nan if (number, precision) == (1, "bf16") else loss - 0.5
                curves = {"val/loss": [loss, second], "test/loss": [loss + 0.05, second + 0.05]}
                rows.append({**Run(number, seed, precision)._asdict(), **values, "seconds": 2.0, **curves})
    save_table(file, rows, build_schema(recording))
    return rows


def test_replayed_problem_gives_the_curves_of_the_nearest(tmp_path):
    rows = build_table(tmp_path / "curves.parquet")
    problem = replayed("features", file=tmp_path / "curves.parquet")
    for row in rows:
        curves = [problem.curve(row, np.random.default_rng(seed)) for seed in range(20)]
        assert {curve.seconds for curve in curves} == {60.0}
        firsts = {round(curve.values[0], 4) for curve in curves}
        assert firsts == {round(1.0 + row["number"] + 0.1 * seed, 4) for seed in range(2)}
        assert all(curve.diverges == (row["number"] == 1 and row["precision"] == "bf16") for curve in curves)
    assert problem.best == pytest.approx(0.55)


def test_replayed_score_is_minimized(tmp_path):
    recording = RECORDINGS["liquid"]
    (values,) = draw_configs(recording, 1)
    rows = [
        {**Run(0, 0, precision)._asdict(), **values, "seconds": 1.0, "val/score": [0.25, 0.75]}
        for precision in ("fp32", "bf16")
    ]
    save_table(tmp_path / "curves.parquet", rows, build_schema(recording))
    problem = replayed("liquid", file=tmp_path / "curves.parquet")
    draw = np.random.default_rng(0)
    assert problem.curve(problem.draw(draw), draw).values == [0.75, 0.25]
    assert problem.best == 0.25
