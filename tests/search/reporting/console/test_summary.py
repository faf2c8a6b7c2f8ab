import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from optuna.samplers import RandomSampler
from rich.console import Console

from search.analysis.best_trials import count_outcomes, find_best
from search.analysis.result import SearchResult
from search.config import SearchConfig
from search.config.loading import resolve_config
from search.config.search_space import resolve_space
from search.reporting.console.summary import print_summary, print_trials
from search.study.record import load_search
from search.study.study import create_study
from tests.conftest import ROOT
from tests.search.objectives import VAL_SCORE
from trainables.arc.task import ArcConfig

RUN = "#/experiments/1/runs/abc?workflowType=machine_learning"


class Ended:
    """A search that has ended, and what is told of it; `best` is the trial that was best."""

    def __init__(self, folder, best, **options):
        self.config = resolve_config(SearchConfig(task="arc", name=folder.name, storage=folder.parent, **options))
        self.folder = folder
        space = resolve_space(ArcConfig, self.config.set, self.config.search)
        study, store = create_study(folder, lambda number: RandomSampler(seed=number), [VAL_SCORE])
        study.save_metadata(
            {"config": self.config.model_dump(mode="json", by_alias=True), "first": [space.get_defaults()]}
        )
        study.enqueue(space.get_defaults())
        for outcome in ("completed", "pruned", "failed"):
            number, values = study.ask(space)
            study.record_config(number, space.build_config(values).model_dump(mode="json"))
            if outcome != "failed":
                score = 0.5 if number == best else 0.25
                study.report(number, 1, score, {"metrics": {"val/score": score}, "checkpoint": f"{number}-1.pt"})
            study.end(number, outcome)
        store.close()
        self.searched = load_search(folder)
        self.mlflow = {"tracking_uri": f"sqlite:///{folder}/mlflow.db", "experiment_id": "1", "run_id": "abc"}

    def told(self, quiet=False, width=10_000):
        trials = self.searched.trials
        result = SearchResult(
            self.folder.name,
            count_outcomes(trials),
            find_best(trials, VAL_SCORE),
            [],
            self.mlflow,
            61.0,
            "",
            None,
            self.searched,
        )
        stream = io.StringIO()
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


def test_the_best_is_told_in_full_beside_the_defaults(ended):
    params = [ended.searched.trials[number].params for number in (1, 0)]
    lines = ended.told().splitlines()
    at = lines.index("best: trial 1, val/score 0.5 after epoch 1")
    assert lines[at + 1].split() == ["trial", "1", "defaults"]
    assert lines[at + 2].split() == ["val/score", "0.5", "0.25"]
    told = {line.split()[0]: line.split()[1:] for line in lines[at + 3 : at + 3 + len(params[0])]}
    assert told.keys() == params[0].keys()
    assert told["agent_lr"] == [f"{of_trial['agent_lr']:.4g}" for of_trial in params]


def test_a_best_that_is_the_defaults_says_so(tmp_path):
    told = Ended(tmp_path, best=0).told()
    assert "best: trial 0 with the defaults, val/score 0.5 after epoch 1\n" in told
    assert "      defaults" not in told


def test_the_command_for_mlflow_works_when_it_is_pasted(ended):
    command = shlex.split(ended.line("look").split(", then ")[0])
    assert command[-2:] == ["--backend-store-uri", ended.mlflow["tracking_uri"]]
    assert Path(command[0]).exists()
    assert ended.line("look").endswith(f", then http://127.0.0.1:5000/{RUN}")


def test_a_server_is_told_as_the_address_of_the_search_without_a_password(ended):
    ended.mlflow["tracking_uri"] = "https://me:secret@mlflow.example.org/team/"
    assert ended.line("look") == f"https://mlflow.example.org/team/{RUN}"


def test_a_database_that_the_environment_names_is_told_by_the_name_of_the_variable(ended, monkeypatch):
    ended.mlflow["tracking_uri"] = "postgresql://me:secret@host/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/runs")
    assert 'ui --backend-store-uri "$MLFLOW_TRACKING_URI", then' in ended.line("look")
    assert "secret" not in ended.told()


def test_the_report_is_named_if_there_is_one(ended):
    assert "report.html" not in ended.told()
    (ended.folder / "report.html").touch()
    assert f"look: {ended.folder}/report.html\n" in ended.told()


def test_more_trials_are_a_command(ended):
    words = shlex.split(ended.line("more"))
    assert words == [
        "python", "search/run.py", "--resume", "s1", "--storage", str(ended.folder.parent), "--trials", "6",
    ]  # fmt: skip


def test_the_best_config_is_trained_again_by_a_command(ended):
    words = shlex.split(ended.line("train"))
    assert words[:4] == ["python", "search/run.py", "arc", "--once"]
    command = [sys.executable, *words[1:], "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    best = ended.searched.trials[1]
    assert yaml.safe_load(done.stdout)["set"] == {
        name: str(value) for name, value in {"dropout": 0.1, **best.params}.items()
    }


def test_quiet_leaves_out_the_table_and_keeps_the_best_and_the_commands(ended):
    quiet, told = ended.told(quiet=True), ended.told()
    assert told.endswith(quiet)
    assert "outcome" in told.splitlines()[0]
    assert quiet.startswith("1 completed, 1 pruned, 1 failed in 61 s\n")


def test_a_narrow_terminal_has_whole_columns(ended):
    stream = io.StringIO()
    console = Console(file=stream, width=60, force_terminal=True, color_system=None)
    print_trials(console, ended.searched)
    head, *rows = stream.getvalue().splitlines()
    assert head.split()[:5] == [
        "trial",
        "outcome",
        "epochs",
        "val/score",
        *list(ended.searched.trials[0].params)[:1],
    ]
    assert all(len(line) <= 60 and "…" not in line for line in [head, *rows])
