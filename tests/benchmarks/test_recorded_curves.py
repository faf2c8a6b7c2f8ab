import math

import numpy as np
import optuna
import pyarrow as pa
import pytest

from benchmarks.search.problems.recorded import RECORDINGS, build_replayed
from benchmarks.search.table import load_table, save_table


def draw_configs(name, count):
    space = RECORDINGS[name].build_space(precision="fp32")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    return [space.suggest(study.ask()) for _ in range(count)]


def save(file, rows):
    save_table(file, rows, pa.Table.from_pylist(rows).schema)
    assert load_table(file)[0].keys() == rows[0].keys()
    return file


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_values_are_those_of_a_valid_config(name):
    problem = build_replayed(name)
    draw = np.random.default_rng(0)
    config = problem.space.build_config(problem.draw(draw))
    assert config.epochs == problem.epochs == 27
    assert problem.best < problem.worst


def test_replayed_problem_gives_the_curves_of_the_nearest(tmp_path):
    """The second of two configurations diverges in bf16 in its second epoch."""
    rows = []
    for number, values in enumerate(draw_configs("features", 2)):
        for seed in range(2):
            for precision in ("fp32", "bf16"):
                loss = 1.0 + number + 0.1 * seed
                second = math.nan if (number, precision) == (1, "bf16") else loss - 0.5
                curves = {"val/loss": [loss, second], "test/loss": [loss + 0.05, second + 0.05]}
                run = {"number": number, "seed": seed, "precision": precision}
                rows.append({**run, **values, "seconds": 2.0, **curves})
    problem = build_replayed("features", file=save(tmp_path / "curves.parquet", rows))
    for row in rows:
        curves = [problem.curve(row, np.random.default_rng(seed)) for seed in range(20)]
        assert {curve.seconds for curve in curves} == {60.0}
        firsts = {round(curve.values[0], 4) for curve in curves}
        assert firsts == {round(1.0 + row["number"] + 0.1 * seed, 4) for seed in range(2)}
        assert all(curve.diverges == (row["number"] == 1 and row["precision"] == "bf16") for curve in curves)
    assert problem.best == pytest.approx(0.55)


def test_replayed_score_is_minimized(tmp_path):
    (values,) = draw_configs("liquid", 1)
    rows = [
        {"number": 0, "seed": 0, "precision": precision, **values, "seconds": 1.0, "val/score": [0.25, 0.75]}
        for precision in ("fp32", "bf16")
    ]
    problem = build_replayed("liquid", file=save(tmp_path / "curves.parquet", rows))
    draw = np.random.default_rng(0)
    assert problem.curve(problem.draw(draw), draw).values == [0.75, 0.25]
    assert problem.best == 0.25
