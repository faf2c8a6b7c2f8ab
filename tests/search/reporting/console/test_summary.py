import io
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from searchlight.search.analysis.best_trials import count_outcomes, describe_no_effect, find_best
from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.formatting import format_command
from searchlight.search.reporting.console.summary import print_summary, print_trials
from searchlight.search.run import main
from searchlight.search.space.function_config import parse_fixed_values
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.trainables.arc.task import ArcConfig
from tests.search.objectives import VAL_SCORE
from tests.search.stored_studies import Search, always_random

RUN = "#/experiments/1/runs/abc?workflowType=machine_learning"


class Ended:
    """A search that has ended, and what is told of it; `best` is the trial that was best."""

    def __init__(self, folder, best, **options):
        self.config = resolve_config(SearchConfig(task="arc", name=folder.name, storage=folder.parent, **options))
        self.folder = folder
        space = resolve_space(ArcConfig, self.config.set, self.config.search)
        study, store = create_study(folder, always_random, [VAL_SCORE])
        about = self.config.model_dump(mode="json", by_alias=True)
        study.save_metadata({"config": about, "first": [space.get_defaults()]})
        study.enqueue(space.get_defaults())
        for outcome in ("completed", "pruned", "failed"):
            number, values = study.ask(space)
            study.record_config(number, space.build_config(values).model_dump(mode="json"))
            if outcome != "failed":
                score = 0.5 if number == best else 0.25
                study.report(number, 1, score, {"metrics": {"val/score": score}, "checkpoint": f"{number}-1.pt"})
            study.end(number, outcome, "KeyError: 'x', at my_task.py, line 7, in loss" if outcome == "failed" else "")
        store.close()
        self.searched = load_search(folder)
        self.mlflow = {"tracking_uri": f"sqlite:///{folder}/mlflow.db", "experiment_id": "1", "run_id": "abc"}

    def told(self, quiet=False, width=10_000, stopped="", is_exhausted=False):
        trials, name = self.searched.trials, self.folder.name
        outcomes, best = count_outcomes(trials), find_best(trials, VAL_SCORE)
        result = SearchResult(name, outcomes, best, [], self.mlflow, 61.0, stopped, None, self.searched)
        stream = io.StringIO()
        result = replace(result, is_exhausted=is_exhausted)
        print_summary(Console(file=stream, width=width), result, self.folder, quiet)
        return stream.getvalue()

    def line(self, name):
        (line,) = [line for line in self.told().splitlines() if line.startswith(f"{name}: ")]
        return line.removeprefix(f"{name}: ")


@pytest.fixture
def ended(tmp_path):
    folder = tmp_path / "its folder" / "s1"
    folder.mkdir(parents=True)
    return Ended(folder, best=1, set={"dropout": 0.1})


def test_best_trial_is_shown_beside_the_defaults(ended):
    params = [ended.searched.trials[number].params for number in (1, 0)]
    lines = ended.told().splitlines()
    at = lines.index("best: trial 1, val/score 0.5 after epoch 1")
    assert lines[at + 1].split() == ["trial", "1", "defaults"]
    assert lines[at + 2].split() == ["val/score", "by", "epoch", "1", "0.5", "0.25"]
    told = {line.split()[0]: line.split()[1:] for line in lines[at + 3 : at + 3 + len(params[0])]}
    assert told.keys() == params[0].keys()
    assert told["policy_lr"] == [f"{of_trial['policy_lr']:.4g}" for of_trial in params]


def test_best_trial_may_be_the_defaults(tmp_path):
    told = Ended(tmp_path, best=0).told()
    assert "best: trial 0 with the defaults, val/score 0.5 after epoch 1\n" in told
    assert "      defaults" not in told


def test_failures_are_shown_with_the_line_of_the_code(ended):
    assert ended.line("failed") == "trial 2: KeyError: 'x', at my_task.py, line 7, in loss"
    assert ended.line("tracebacks") == str(ended.folder / "errors")
    stopped = "the first 5 trials failed with the same error: KeyError: 'x', at my_task.py, line 7, in loss"
    assert ended.told(stopped=stopped).count("my_task.py, line 7") == 1


def test_best_value_has_its_unit_and_its_baseline(tmp_path):
    ended = Ended(tmp_path, best=1)
    ended.searched.about["units"] = {"val/score": "1 is the best", "val/bpb": "bits per byte", "val/nmse": "a share"}
    metrics = ended.searched.trials[1].user_attrs["report/1"]["metrics"]
    metrics.update({"val/score_baseline": 0.4, "val/bpb": 4.0})
    lines = ended.told().splitlines()
    at = lines.index("best: trial 1, val/score 0.5 (1 is the best, baseline 0.4) after epoch 1")
    assert lines[at + 1] == "  val/bpb 4, bits per byte"
    assert "val/nmse" not in ended.told()


def test_look_names_mlflow_without_a_password(ended, monkeypatch):
    command = shlex.split(ended.line("look").split(", then ")[0])
    assert command[-2:] == ["--backend-store-uri", ended.mlflow["tracking_uri"]]
    assert Path(command[0]).exists()
    assert ended.line("look").endswith(f", then http://127.0.0.1:5000/{RUN}")
    ended.mlflow["tracking_uri"] = "https://me:secret@mlflow.example.org/team/"
    assert ended.line("look") == f"https://mlflow.example.org/team/{RUN}"
    ended.mlflow["tracking_uri"] = "postgresql://me:secret@host/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/runs")
    assert 'ui --backend-store-uri "$MLFLOW_TRACKING_URI", then' in ended.line("look")
    assert "secret" not in ended.told()


def test_look_names_an_existing_report(ended):
    assert "report.html" not in ended.told()
    (ended.folder / "report.html").touch()
    assert f"look: {ended.folder}/report.html\n" in ended.told()


def test_other_result_files_are_named_if_they_exist(ended):
    assert "\nfiles: " not in ended.told()
    for name in ("trials.parquet", "best.yaml"):
        (ended.folder / name).touch()
    assert f"\nfiles: best.yaml, trials.parquet in {ended.folder}\n" in ended.told()


def test_commands_continue_and_repeat_the_search(ended):
    folder = str(ended.folder.parent)
    words = [*shlex.split(format_command("resume")), "s1", "--storage", folder, "--trials", "6"]
    assert shlex.split(ended.line("more")) == words
    python, script, *words = shlex.split(ended.line("train"))
    assert ([python, script], words[:2]) == (shlex.split(format_command("run")), ["arc", "--once"])
    done = CliRunner().invoke(main, [*words, "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    expected = {"dropout": 0.1, **ended.searched.trials[1].params}
    assert yaml.safe_load(done.stdout)["set"] == {name: str(value) for name, value in expected.items()}


def test_search_that_has_tried_all_configs_is_not_to_be_continued(ended):
    assert [("more: " in ended.told(is_exhausted=is_exhausted)) for is_exhausted in (False, True)] == [True, False]


@pytest.mark.parametrize(
    ("curves", "is_told"),
    [
        ([(0.5, 0.6), (0.5, 0.6), (0.5, 0.6)], True),
        ([(0.5, 0.6), (0.5, 0.6, 0.7), (0.5, 0.6)], True),
        ([(0.5, 0.6), (0.5, 0.6), (0.5, 0.7)], False),
        ([(0.5, 0.6), (0.5, 0.6)], False),
        ([(0.5,), (0.5,), (0.5,)], False),
    ],
)
def test_equal_curves_of_different_parameters_are_told(tmp_path, curves, is_told):
    search = Search(tmp_path)
    for curve in curves:
        search.run(*curve)
    search.store.close()
    line = describe_no_effect(load_search(search.config.local_path).trials)
    expected = "no effect: all 3 trials have equal values in every epoch, whatever their parameters. "
    assert line == (f"{expected}Do these reach the training?" if is_told else "")


def test_command_that_trains_again_has_null_as_a_function_and_a_task_read_it(tmp_path):
    (tmp_path / "s1").mkdir()
    command = shlex.split(Ended(tmp_path / "s1", best=1, set={"max_loss_rise": None}).line("train"))
    assert "max_loss_rise=null" in command
    assert parse_fixed_values({"x": "null"}) == {"x": None}
    assert resolve_space(ArcConfig, {"max_loss_rise": "null"}, {}).fixed["max_loss_rise"] is None


def test_search_whose_trials_all_failed_is_not_to_be_continued(ended):
    ended.searched = replace(ended.searched, trials=ended.searched.trials[2:])
    told = ended.told()
    assert told.endswith("\nnext: correct the task, and begin a new search: all trials failed\n")
    assert "more: " not in told


def test_checkpoint_of_a_confirming_run_names_that_run(ended, monkeypatch):
    assert ended.line("checkpoint") == "1-1.pt"
    best = replace(find_best(ended.searched.trials, VAL_SCORE), run=20)
    monkeypatch.setattr(f"{__name__}.find_best", lambda *_: best)
    assert ended.line("checkpoint") == "1-1.pt, of confirming run 20"


def test_quiet_summary_has_no_table(ended):
    quiet, told = ended.told(quiet=True), ended.told()
    assert told.endswith(quiet)
    assert "outcome" in told.splitlines()[0]
    assert quiet.startswith("1 completed, 1 pruned, 1 failed in 1:01\n")


def test_narrow_terminal_has_whole_columns(ended):
    stream = io.StringIO()
    console = Console(file=stream, width=60, force_terminal=True, color_system=None)
    print_trials(console, ended.searched)
    lines = stream.getvalue().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("not shown in 60 columns: "))
    head, *rows = lines[:at]
    below = " ".join(line.strip() for line in lines[at:])
    assert len(rows) == 3
    omitted = below.removeprefix("not shown in 60 columns: ").partition("; ")[0].split(", ")
    assert [*head.split()[4:], *omitted] == [*ended.searched.trials[0].params]
    assert below.endswith("; report.html has them, and so has a wider terminal")
    assert head.split()[:5] == ["trial", "outcome", "epochs", "val/score", next(iter(ended.searched.trials[0].params))]
    assert all(len(line) <= 60 and "…" not in line for line in [head, *rows])
