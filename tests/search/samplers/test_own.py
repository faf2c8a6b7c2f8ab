"""Samplers that the user names: those of Optuna that have no name of ours, and one that a user has written."""

import re

import pytest
import yaml
from click.testing import CliRunner
from optuna.samplers import TPESampler

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.plan import plan
from searchlight.search.run import main
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.samplers.own import create_own_sampler
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import complete, play_trials

GRID = {"lr": [1e-4, 1e-3, 1e-2], "width": [2, 3]}
FILE = f"""
import warnings
from beside_samplers import Halving
from optuna.samplers import GridSampler, GPSampler, QMCSampler

def grid(seed):
    return GridSampler({GRID}, seed=seed)

def halton(seed):
    with warnings.catch_warnings(action="ignore"):
        return QMCSampler(qmc_type="halton", seed=seed)

def process(seed):
    return GPSampler(seed=seed, n_startup_trials=4)

def halving(seed):
    return Halving()

class Singular(GPSampler):
    def before_trial(self, study, trial):
        raise ArithmeticError("the matrix is singular")

def nothing(seed):
    return {{}}

def without_seed():
    return Halving()

def broken(seed):
    raise KeyError("a typo")
"""
OF_A_USER = """
from optuna.samplers import BaseSampler, RandomSampler

class Halving(BaseSampler):
    '''Halves the learning rate of the last trial that was better than the one before it.'''

    def infer_relative_search_space(self, study, trial):
        return {"lr": study.trials[0].distributions["lr"]} if study.trials[0].distributions else {}

    def sample_relative(self, study, trial, search_space):
        return {"lr": study.best_trial.params["lr"] / 2} if search_space else {}

    def sample_independent(self, study, trial, name, distribution):
        return RandomSampler(seed=trial.number).sample_independent(study, trial, name, distribution)
"""


class Config(TaskConfig):
    lr: float = searchable(5e-3, low=1e-5, high=1e-1, log=True)
    width: int = searchable(2, low=1, high=8)


SPACE = resolve_space(Config, {"precision": "fp32"}, {})


@pytest.fixture
def file(tmp_path):
    (tmp_path / "samplers.py").write_text(FILE)
    (tmp_path / "beside_samplers.py").write_text(OF_A_USER)
    return tmp_path / "samplers.py"


def play(folder, sampler, trials, points=(), seed=0):
    """Return the values of the trials of a study, which a sampler of `sampler` has proposed after the `points`."""
    folder.mkdir(exist_ok=True)
    study, lock = create_study(folder, sampler_factory(sampler, seed), [VAL_LOSS])
    for point in points:
        study.enqueue(point)
    played = play_trials(study, SPACE, trials, lambda number, values: complete(study, number, values["lr"]))
    lock.close()
    return played


def begin(given):
    """Return a new search that its driver has left before its first trial."""
    asked = plan(load_config(given))
    asked.config.local_path.mkdir(parents=True)
    return create_search(asked)


def test_grid_is_searched_whole_across_two_drivers(file, tmp_path):
    defaults = SPACE.get_defaults()
    first, *played = play(tmp_path / "study", f"{file}:grid", 4, points=[defaults, {}])
    played += play(tmp_path / "study", f"{file}:grid", 3)  # to the last point, after which the grid stops a study
    assert first == defaults
    assert sorted((values["lr"], values["width"]) for values in played) == [
        (lr, n) for lr in GRID["lr"] for n in (2, 3)
    ]


def test_point_with_some_values_needs_no_point_of_the_grid(file, tmp_path):
    values, *_ = play(tmp_path / "study", f"{file}:grid", 2, points=[{"lr": 0.05}])
    assert values["lr"] == 0.05
    assert 1 <= values["width"] <= 8


@pytest.mark.parametrize("name", ["halton", "process"])
def test_sampler_of_optuna_proposes_the_same_for_the_same_seed(file, tmp_path, name):
    played = [play(tmp_path / str(index), f"{file}:{name}", 6, seed=seed) for index, seed in enumerate((0, 0, 1))]
    assert played[0] == played[1] != played[2]
    assert all(1e-5 <= values["lr"] <= 0.1 for values in played[0])


def test_sampler_of_a_user_sees_the_trials(file, tmp_path):
    played = play(tmp_path / "study", f"{file}:halving", 4, points=[SPACE.get_defaults()])
    assert [values["lr"] for values in played] == [5e-3, 2.5e-3, 1.25e-3, 6.25e-4]


def test_cma_es_of_optuna_keeps_its_state_until_a_resume(tmp_path):
    name = "optuna.samplers:CmaEsSampler"
    play(tmp_path / "study", name, 26)
    played = load_search(tmp_path / "study").trials
    assert max(trial.system_attrs.get("cma:generation", 0) for trial in played) >= 2, "it began anew for each trial"


def test_error_of_a_sampler_is_told_in_a_line(file, tmp_path):
    told = f"--sampler must propose trial 1, but {file}:Singular raised ArithmeticError: the matrix is singular, at "
    with pytest.raises(UsageError, match=f"^{re.escape(f'{told}{file}, line ')}"):
        play(tmp_path / "study", f"{file}:Singular", 2, points=[SPACE.get_defaults()])


def test_class_of_a_package_is_a_sampler():
    assert isinstance(create_own_sampler("optuna.samplers:TPESampler", 3).sampler, TPESampler)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("samplers.py:nothing", "--sampler must give an optuna.samplers.BaseSampler, but {} gave an object of dict."),
        ("samplers.py:gird", "--sampler must name a function in {file}, but there is no 'gird'."),
        ("samplers.py:without_seed", "--sampler must be callable as without_seed(seed=0), but {} raised TypeError: "),
        ("samplers.py:broken", "--sampler must be callable as broken(seed=0), but {} raised KeyError: 'a typo', at "),
        ("missing.py:make", "--sampler must be in a file that exists, but there is no {folder}/missing.py."),
        ("no_such_package.samplers:make", "--sampler must be callable as make(seed=0), but {} raised ModuleNotFound"),
        (
            "bayes",
            "--sampler must be mixture, tpe, gp, cmaes, qmc, nsga2, random or like my_samplers.py:make_sampler, "
            "but got ",
        ),
    ],
)
def test_wrong_sampler_is_refused_in_a_line_before_anything_is_written(file, tmp_path, monkeypatch, name, problem):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["arc", "--sampler", name, "--dry-run"])
    where = f"{tmp_path / name}" if ".py:" in name else name
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(problem.format(where, file=file, folder=tmp_path)), done.stderr
    assert not (tmp_path / "runs").exists()


def test_resumed_search_uses_the_sampler_of_its_file(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"task": "arc", "name": "one", "sampler": "samplers.py:halton", "trials": 2}
    begin(given).store.close()
    place = tmp_path / "runs" / "one"
    assert yaml.safe_load((place / "search.yaml").read_text())["sampler"] == f"{file}:halton"
    monkeypatch.chdir(tmp_path.parent)
    resumed, opened = open_search(place, {})
    opened.store.close()
    assert resumed.config.sampler == f"{file}:halton"
    file.rename(tmp_path / "moved.py")
    with pytest.raises(UsageError, match=r"--sampler must be in a file that exists, but there is no .*samplers.py"):
        open_search(place, {})
    resumed, opened = open_search(place, {"sampler": f"{tmp_path}/moved.py:halton"})
    opened.store.close()
    assert resumed.config.sampler == f"{tmp_path}/moved.py:halton"


def test_sampler_that_only_a_database_names_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/study.db"
    given = {"task": "arc", "name": "one", "sampler": "samplers.py:halton", "trials": 2, "study": url}
    opened = begin(given)
    metadata = opened.study.metadata
    opened.study.save_metadata({**metadata, "config": {**metadata["config"], "sampler": f"{file}:grid"}})
    opened.study.commit()
    opened.store.close()
    place = tmp_path / "runs" / "one"
    with pytest.raises(UsageError, match=r"must have the sampler of .*search.yaml, .*:halton, but has .*:grid"):
        open_search(place, {})
    resumed, opened = open_search(place, {"sampler": f"{file}:grid"})
    opened.store.close()
    assert resumed.config.sampler == f"{file}:grid"
