"""Searches at several sizes: what each of them is given, and what is left of them when they are resumed."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from searchlight.search.cli import searchlight
from searchlight.search.config.loading import load_config, to_yaml
from searchlight.search.errors import UsageError
from searchlight.search.experiment import ladder, plan
from searchlight.search.experiment.ladder import limit_size
from searchlight.search.experiment.opening import create_search
from searchlight.search.folder.locations import LADDER
from searchlight.search.option import read_yaml
from searchlight.search.reporting.console.listing import print_searches
from searchlight.search.scaling.options import ScalingOptions
from tests.conftest import ROOT, TASKS

# As in a notebook, the class has no file. The search ends where its first size would begin.
FROM_INPUT = """
from searchlight.search.config import SearchConfig
from searchlight.search.experiment import ladder, plan
from searchlight.trainables.lm import LmTask

class Own(LmTask):
    pass

def note(config, console):
    print(plan(config).source.task_class.__name__)
    raise SystemExit

ladder.runner.run = note
ladder.run(SearchConfig(task=Own, sizes="48,96", set={"heads": 3}, name="grown", confirm=0))
"""


@pytest.mark.parametrize(
    "task", [{"task": "liquid"}, {"command": ["train", "{lr}", "{checkpoint_dir}"], "set": {"epochs": 3}}]
)
@pytest.mark.parametrize(("given", "scheduler"), [({}, "none"), ({"scheduler": "median"}, "median")])
def test_scheduler_is_the_same_after_a_resume(task, given, scheduler):
    config = load_config({**task, **given, "search": {"lr": "0.1..1"}, "sizes": ["width=8,16"]})
    resumed = load_config(read_yaml(to_yaml(config)))
    assert [config.scheduler, resumed.scheduler] == [scheduler, scheduler]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"exponent": ["lrr/width=-1"]}, "--exponent must name a searched number, but got 'lrr'. Did you mean 'lr'?"),
        ({"sizes": ["8,16 width=1,2"]}, "--sizes must have width once, but it is also that of the numbers without"),
        ({"sizes": ["16,8"]}, "--sizes must go from small to large, but got width16, width8."),
        ({"sizes": ["8,16"], "target": ["depth=3"]}, "--sizes and --target must have the same parameters, but got"),
        (
            {"task": "liquid", "sizes": ["8,16"]},
            "--sizes must be like width=64,128,256, because liquid declares no size.",
        ),
        ({"sizes": ["width=8,16 workers=1,0"]}, "at size width16: --workers must be greater than or equal to 1"),
        ({"sizes": ["width=8,16 workers=1,1.5"]}, "at size width16: --workers must be a valid integer"),
        ({"sizes": ["width=8,16 gpus_per_worker=0,-1"]}, "at size width16: --gpus-per-worker must be greater than"),
        ({"sizes": ["width=8,16 cpus_per_worker=1,9999"]}, "at size width16: "),
    ],
)
def test_size_that_cannot_be_searched_is_refused_before_any_begins(tmp_path, options, problem):
    given = {"task": f"{TASKS / 'growing.py'}:Growing", "storage": tmp_path / "runs", "name": "grown"}
    with pytest.raises(UsageError) as refused:
        ladder.run(load_config({**given, "sizes": ["width=8,16"], **options}))
    assert refused.value.problems[0].startswith(problem)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("target", ["depth=8 width=192", "width=192 depth=8 workers=2"])
def test_target_is_a_set_of_parameters(target):
    sizes = "width=8,16 depth=1,2 workers=1,2"
    assert [*ScalingOptions(sizes=sizes, target=target).find_problems()] == []
    assert [*ScalingOptions(sizes=sizes, target="width=192").find_problems()]


@pytest.mark.parametrize(("is_last", "hours"), [(False, 0.75), (True, 1.5)])
def test_size_has_half_of_the_gpu_hours_left_unless_it_is_the_last(is_last, hours):
    config = load_config({"task": "liquid", "sizes": ["width=8,16"], "gpu_hours": 2, "time_budget": "10m"})
    assert limit_size(config, 1800.0, 60.0, is_last) == {"gpu_hours": hours, "time_budget": 540.0}


@pytest.fixture
def begun(tmp_path):
    """The folder of searches at two sizes, of which the first has begun. None of its trials has."""
    given = {"task": f"{TASKS / 'growing.py'}:Growing", "storage": tmp_path / "runs", "name": "grown"}
    limits = {"time_budget": 60.0, "gpu_hours": 2.0}
    config = load_config({**given, **limits, "sizes": ["width=8,16"]})
    config.path.mkdir(parents=True)
    (config.path / LADDER).write_text(to_yaml(config))
    child = plan(load_config({**given, "name": "grown-width8", "time_budget": 2.0, "set": {"width": 8}}))
    child.config.path.mkdir()
    create_search(child).store.close()
    return config.path


@pytest.mark.parametrize("lost", [(), ("search.yaml",)])
def test_size_that_had_ended_stays_as_it_is(begun, lost):
    (begun / ladder.RESULT).write_text(json.dumps({"ended": ["width8"]}))
    for name in lost:
        (begun.with_name("grown-width8") / name).unlink()
    journal = begun.with_name("grown-width8") / "study.journal"
    before = journal.read_bytes()
    result = ladder.resume(begun)
    assert journal.read_bytes() == before
    assert (result.stopped, result.ended) == ("no trial at width8 has a result", ["width8"])
    assert json.loads((begun / ladder.RESULT).read_text()) == result.as_json()


def test_size_goes_on_with_the_budgets_of_the_resume(begun, monkeypatch):
    class Begins(Exception):
        pass

    def note(name, storage, given, console):
        raise Begins(name, given)

    monkeypatch.setattr(ladder.runner, "resume", note)
    with pytest.raises(Begins) as begins:
        ladder.resume(begun)
    name, given = begins.value.args
    assert (name, given["gpu_hours"]) == ("grown-width8", 1.0)
    assert 50 < given["time_budget"] <= 60


@pytest.mark.parametrize("command", [["best"], ["status"], ["log"], ["report"]])
def test_command_about_one_search_names_those_of_the_sizes(begun, command):
    done = CliRunner().invoke(searchlight, [*command, "grown", "--storage", str(begun.parent)])
    assert done.exit_code == 2
    assert done.stderr == "name must be one search, but grown has one at each size: grown-width8, grown-width16.\n"


def test_list_has_a_line_for_searches_at_several_sizes(begun, capsys):
    print_searches(begun.parent)
    assert "grown  a search at each size: grown-width8, grown-width16" in capsys.readouterr().out.splitlines()
    print_searches(begun.parent, as_json=True)
    assert {"name": "grown", "searches": ["grown-width8", "grown-width16"]} in json.loads(capsys.readouterr().out)


def test_task_without_a_file_is_there_before_the_first_size_begins(tmp_path):
    """It has a process of its own, which imports the copy of the task and of what lies beside it."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-"], input=FROM_INPUT, cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Own\n"
