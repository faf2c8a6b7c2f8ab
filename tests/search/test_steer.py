"""The command lines that look at a search or change it, over a search that does not run."""

import json
import select
import shlex
import subprocess
import sys
from functools import partial

import pytest
import yaml
from click.testing import CliRunner

from searchlight.search import steer
from searchlight.search.analysis.result import SearchResult
from searchlight.search.cli import STEERING, searchlight
from searchlight.search.errors import UsageError
from searchlight.search.reporting import running_search, status
from searchlight.search.reporting.agent_tools import AgentTools
from searchlight.search.reporting.explanation import explain_trial
from searchlight.search.reporting.running_search import RunningSearch
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.space.function_config import build_function_config
from searchlight.search.space.search_space import resolve_space
from searchlight.search.steer import COMMANDS
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.mailbox import FOLDER
from searchlight.search.steering.operations import OPERATIONS
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from tests.conftest import ROOT
from tests.search.execution.searcher_harness import Config, end, report
from tests.search.objectives import VAL_LOSS
from tests.search.output_schemas import check_output


@pytest.fixture
def ended(make_searcher, tmp_path):
    """The folder of an ended search with two trials at their first rung and a command."""
    searcher, study, _ = make_searcher(trials=2)
    for name, loss in (("t0", 0.5), ("t1", 0.9)):
        searcher.suggest(name)
        report(searcher, name, 1, loss, done=True)
    study.record_command(LogEntry(1, Command("pause", {"drain": True}, "ann", "lunch"), Answer(True, "paused")))
    study.commit()
    return tmp_path


@pytest.fixture
def killed(make_searcher, tmp_path):
    """The folder of a search whose driver has recorded its start and no end."""
    _, study, _ = make_searcher(trials=2)
    study.record_driver_start(1.0)
    study.commit()
    return tmp_path


def call(name, *arguments):
    """Run a command, and return its exit code and what it printed."""
    command = next(command for command in COMMANDS if command.name == name)
    done = CliRunner().invoke(command, arguments)
    return done.exit_code, done.stdout, done.stderr


def test_commands_of_searchlight_are_those_that_are_made():
    assert [command.name for command in COMMANDS] == [*STEERING]


def test_pages_and_agents_know_each_command():
    page = (ROOT / "docs" / "steering.md").read_text()
    assert [name for name in STEERING if f"| `{name} NAME" not in page] == []
    told = AgentTools.steer.__doc__ + AgentTools.propose.__doc__
    assert [name for name in OPERATIONS if name != "try" and name not in told] == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_python_has_a_method_for_each_command(name):
    method = getattr(RunningSearch, {"try": "try_", "continue": "continue_"}.get(name, name))
    assert method.__doc__.startswith(OPERATIONS[name].help)
    assert all(argument in method.__doc__ for argument in OPERATIONS[name].arguments)


def test_method_takes_no_more_arguments_than_its_command_has(ended):
    with pytest.raises(ValueError, match="zip"):
        RunningSearch.pause(RunningSearch(ended), False, "too many")


def test_log_tells_who_asked_what_and_why(ended):
    place = ["--storage", str(ended.parent)]
    assert "pause by ann (lunch): paused" in call("log", ended.name, *place)[1]
    found = check_output("log", call("log", ended.name, *place, "--json")[1])
    assert (found["schema"], found["commands"][0]["command"]["why"]) == (1, "lunch")


def test_trials_are_chosen_by_a_condition(ended):
    place = [ended.name, "--storage", str(ended.parent), "--json"]
    rows = check_output("trials", call("trials", *place)[1])["trials"]
    assert [row["trial"] for row in rows] == [0, 1]
    condition = ["--where", "val/loss<0.6 and epoch>=1", "--curves"]
    chosen = check_output("trials", call("trials", *place, *condition)[1])["trials"]
    assert [row["trial"] for row in chosen] == [0]
    assert chosen[0]["curve"] == {"1": 0.5}
    assert [row["outcome"] for row in rows] == ["unfinished", "unfinished"]
    code, _, error = call("trials", *place, "--where", "loss")
    assert code == 2
    assert "a condition must be like" in error
    code, _, error = call("trials", *place, "--where", "vall/loss<0.5")
    assert code == 2
    assert "no trial has 'vall/loss'. Did you mean 'val/loss'?" in error
    assert "no trial of" in call("trials", *place[:-1], "--where", "val/loss<0.1")[1]


def test_trial_is_explained_by_its_origin_its_rungs_and_its_commands(make_searcher, tmp_path):
    searcher, study, _ = make_searcher(trials=3)
    study.save_metadata({"config": {"scheduler": "asha", "sampler": "tpe"}, "rungs": [1, 3]})
    study.enqueue({"lr": 0.25})
    for name, loss in (("t0", 0.5), ("t1", 0.9), ("t2", 0.1)):
        searcher.suggest(name)
        report(searcher, name, 1, loss, done=True)
    study.record_command(LogEntry(1, Command("keep", {"trials": [1]}, "ann", "a hunch"), Answer(True, "kept")))
    study.commit()
    place = [tmp_path.name, "--storage", str(tmp_path.parent)]
    told = call("explain", *place, "--trial", "0")[1].splitlines()
    assert told == ["trial 0: unfinished", "it was to be tried first", "at 1 epochs: 0.5, 2 of 3; better: 2"]
    found = check_output("explain_trial", call("explain", *place, "--trial", "1", "--json")[1])
    assert found["origin"] == "the sampler, tpe, proposed it when 0 trials had ended"
    assert found["commands"] == ["keep by ann: a hunch"]
    assert found["rungs"] == [{"rung": 1, "value": 0.9, "rank": 3, "of": 3, "better": [2, 0]}]
    code, _, error = call("explain", *place, "--trial", "7")
    assert (code, error) == (2, f"--trial must be a trial of {tmp_path.name}, but there is no 7.\n")


def test_search_is_explained_by_its_best_and_its_failures(make_searcher, tmp_path):
    searcher, study, _ = make_searcher(trials=3)
    place = [tmp_path.name, "--storage", str(tmp_path.parent)]
    assert call("explain", *place)[1] == "best: no trial has a result yet\nno trial failed\n"
    searcher.suggest("t0")
    report(searcher, "t0", 3, 0.5, done=True)
    searcher.suggest("t1")
    end(searcher, "t1", "diverged", "train/loss is not finite")
    study.commit()
    told = call("explain", *place)[1]
    assert "best: trial 0 has the best value of one training each. No confirming run" in told
    assert "diverged: all 1 of 2" in told
    assert check_output("explain", call("explain", *place, "--json")[1])["infeasible"] == []
    assert check_output("status", call("status", *place, "--json")[1])["best"]["trial"] == 0
    result = SearchResult.from_record(load_search(tmp_path)).as_json()
    assert check_output("result", result)["divergence"][0]["diverged"] == 1
    (tmp_path / "storage").mkdir()  # the folder of this test is beside those of all others
    (tmp_path / "storage" / tmp_path.name).symlink_to(tmp_path)
    printed = CliRunner().invoke(searchlight, ["list", "--storage", str(tmp_path / "storage"), "--json"]).stdout
    (own,) = [each for each in check_output("list", printed) if each["name"] == tmp_path.name]
    assert own["best"]["value"] == 0.5


def test_failed_trials_are_explained_by_their_reasons(make_searcher, tmp_path):
    searcher, study, _ = make_searcher(trials=3)
    for name, reason in (("t0", "no such file"), ("t1", "KeyError: 'x'"), ("t2", "no such file")):
        searcher.suggest(name)
        end(searcher, name, "failed", reason)
    study.commit()
    place = [tmp_path.name, "--storage", str(tmp_path.parent)]
    told = ["best: no trial has a result yet", "failed: trials 0, 2: no such file", "failed: trial 1: KeyError: 'x'"]
    assert call("explain", *place)[1].splitlines() == told
    assert len(check_output("explain", call("explain", *place, "--json")[1])["failed"]) == 2


def test_trials_of_hyperband_are_compared_within_their_bracket(make_searcher, tmp_path):
    _, study, _ = make_searcher(trials=1)
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    about = {"config": {"scheduler": "hyperband", "reduction_factor": 3, "sampler": "tpe"}, "rungs": [1, 3, 9]}
    study.save_metadata({**about, "schedule": str(schedule)})
    space = resolve_space(Config, {"precision": "fp32"}, {})
    for number in range(17):
        study.record_config(study.ask(space)[0], {"epochs": 9})
        for epoch in range(1, 10):
            study.report(number, epoch, number / epoch, {"metrics": {"val/loss": number / epoch}})
    study.commit()
    for number in range(17):
        bracket = schedule.get_bracket(number)
        own = [other for other in range(17) if schedule.get_bracket(other) is bracket]
        ranks = explain_trial(load_search(tmp_path), number)["rungs"]
        assert [rank["rung"] for rank in ranks] == [*bracket.rungs]
        assert all(rank["of"] == len(own) and rank["better"] == own[: own.index(number)] for rank in ranks)
    study.save_metadata(about)  # as an earlier version, which had other brackets
    assert explain_trial(load_search(tmp_path), 0)["rungs"] == []


def test_command_to_a_search_that_has_ended_is_refused(ended):
    code, _, error = call("keep", ended.name, "1", "--storage", str(ended.parent))
    assert code == 2
    where = f"{ended.name} --storage {ended.parent}"
    assert f"{ended.name} must run, but has ended. Resume it first: searchlight resume {where}" in error
    assert not (ended / FOLDER).exists()


def test_printed_command_takes_back_what_was_done(driver, tmp_path):
    told = call("avoid", driver.name, "lr>=0.9", "--storage", str(tmp_path.parent), "--id", "mine")[1]
    words = shlex.split(told.partition("take it back: searchlight ")[2])
    assert words == ["undo", driver.name, "mine", "--storage", str(tmp_path.parent)]
    assert "avoid mine is in force no more" in call(*words)[1]


def test_state_is_printed_until_the_search_has_ended(killed, make_searcher, monkeypatch):
    states = iter([True, True, False])
    monkeypatch.setattr(status, "is_running", lambda record: next(states))
    monkeypatch.setattr(steer, "WATCH_S", 0.0)
    printed = call("status", killed.name, "--storage", str(killed.parent), "--watch")[1]
    assert printed.count(killed.name) == 3


def test_watched_state_reaches_a_pipe_at_once(killed, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = "from searchlight.search.cli import main; main()"
    command = [sys.executable, "-c", program, "status", str(killed), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert select.select([watching.stdout], [], [], 60)[0], "the pipe stays empty"
            assert killed.name in watching.stdout.readline()
        finally:
            watching.terminate()


def test_command_to_a_search_whose_driver_was_killed_waits(killed):
    code, _, error = call("keep", killed.name, "1", "--storage", str(killed.parent), "--id", "mine", "--wait", "0")
    assert code == 1
    assert "no driver has answered yet: the command mine waits" in error
    assert error.endswith(f" searchlight resume {killed.name} --storage {killed.parent}\n")
    assert (killed / FOLDER / "mine.request.json").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("stop", "{name}", "x"), "'x' is not a valid integer"),
        (("stop", "{name}"), "Missing argument"),
        (("try", "{name}", "lr"), "a value must be like lr=0.001, but got 'lr'"),
        (("try", "{name}", "lr=0.1", "lr=0.2"), "lr must be given once, but got lr=0.1 and lr=0.2."),
        (("status", "none"), "name must be a search in"),
    ],
)
def test_wrong_argument_is_told_in_one_line(ended, arguments, reason):
    operation, *others = (argument.format(name=ended.name) for argument in arguments)
    code, _, error = call(operation, *others, "--storage", str(ended.parent))
    assert code == 2
    assert reason in error
    assert not (ended / FOLDER).exists(), "nothing is sent"


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_state_tells_whether_a_driver_has_the_study_open(kind, tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}" if kind == "sqlite" else ""
    folder = tmp_path / "searched"
    folder.mkdir()
    if url:
        (folder / "search.yaml").write_text(yaml.safe_dump({"study": url}))
    study, store = create_study(folder, partial(create_sampler, "tpe", 0), [VAL_LOSS], url=url)

    def told():
        lines = call("status", folder.name, "--storage", str(tmp_path))[1].splitlines()
        return lines[0], json.loads(call("status", folder.name, "--storage", str(tmp_path), "--json")[1])["running"]

    study.record_driver_start(1.0)
    study.commit()
    assert told() == ("searched: running; no trial yet", True)
    store.close()  # as the kernel does once it is killed
    assert told() == ("searched: not running: its driver was killed; no trial yet", False)


def test_id_that_no_driver_would_read_is_refused(killed):
    code, _, error = call("keep", killed.name, "1", "--storage", str(killed.parent), "--id", "../mine")
    assert code == 2
    assert "id must be letters, digits, '_' or '-', but got '../mine'" in error
    assert not (killed / FOLDER).exists(), "nothing is sent"


def test_condition_may_name_what_no_trial_has_reported_yet(make_searcher, tmp_path):
    searcher, study, _ = make_searcher(trials=2)
    study.save_metadata({"searched": {"lr": "0..1"}, "config": {"constraint": ["val/cost<=20"]}})
    search = RunningSearch(tmp_path.name, str(tmp_path.parent))
    study.commit()
    assert search.trials("val/loss<0.3 and epoch>3").empty
    searcher.suggest("t0")
    study.commit()
    assert search.trials("val/loss<0.3 and val/cost<9 and lr<7").empty
    with pytest.raises(UsageError, match="a condition must name a parameter or a metric, but no trial has 'vall/loss'"):
        search.trials("vall/loss<0.3")


def test_condition_may_name_a_boolean_null_and_a_text(tmp_path):
    space = resolve_space(build_function_config((), searched := {"x": "true,false,null,none,2"}), {}, searched)
    study, store = create_study(tmp_path, partial(create_sampler, "random", 0), [VAL_LOSS])
    for value in (True, False, None, "none", 2):
        study.enqueue({"x": value})
        study.ask(space)
    study.commit()
    search = RunningSearch(tmp_path)
    met = {text: [*search.trials(f"x{text}").trial] for text in ("=true", "!=False", "=null", "=none", "=2")}
    assert met == {"=true": [0], "!=False": [0, 2, 3, 4], "=null": [2], "=none": [3], "=2": [4]}
    store.close()


def test_value_of_a_trial_is_its_best_one(make_searcher, tmp_path):
    searcher, study, _ = make_searcher(trials=2)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.5)
    report(searcher, "t0", 2, 0.7)
    study.commit()
    search = RunningSearch(tmp_path.name, str(tmp_path.parent))
    assert [*search.trials("val/loss>0.6").value] == [0.5]
    assert search.status()["unfinished"][0]["value"] == 0.5


def test_python_sees_what_the_command_line_sees(ended):
    search = RunningSearch(ended.name, str(ended.parent))
    assert search.status() == json.loads(call("status", ended.name, "--storage", str(ended.parent), "--json")[1])
    assert [*search.trials("val/loss<0.6").trial] == [0]
    assert search.trials().lr.notna().all()
    assert "params" not in search.trials(), "each has a column of its own"
    assert search.best() is None, "no trial has ended"
    assert search.explain(1)["rungs"] == [], "it has kept no rungs"
    assert search.log()[0].command.why == "lunch"
    assert "0.5" in search._repr_html_()
    assert "\nbudget: trials 2" in search._repr_html_()


def test_python_is_told_why_a_command_is_refused(ended):
    with pytest.raises(UsageError, match="must run, but has ended"):
        RunningSearch(ended).stop(1)


def test_python_is_told_that_no_driver_answers(killed, monkeypatch):
    monkeypatch.setattr(running_search, "WAIT_S", 0.0)
    with pytest.raises(TimeoutError, match="no driver has answered yet"):
        RunningSearch(killed).pause()


def test_folder_that_cannot_be_written_is_told_in_one_line(killed):
    (killed / FOLDER).write_text("a file, where the folder of the commands must be")
    code, output, error = call("pause", killed.name, "--storage", str(killed.parent))
    assert (code, output) == (2, "")
    assert error.startswith("--storage must be a place that can be written to, but ")
    assert error.count("\n") == 1
