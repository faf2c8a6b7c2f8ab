"""A whole search of the liquid task over text: what the driver gathers, its workers learn from."""

import hashlib
import json

import pytest

from tests.end_to_end.finished_search import FinishedSearch, artifacts_of

pytestmark = pytest.mark.slow  # a whole search, of what tests without Ray show in parts

SMALL = "epochs=10 samples=16 test_samples=4 length=32 batch_size=8 accumulation=1 width=16 units=16 replay.size=20"
PLASTIC = "plasticity.rule=homeostatic plasticity.meta=true consolidation.method=none cell=liquid"


@pytest.fixture(scope="module")
def search(make_cli):
    """Two trials, judged by their score and by what they forget."""
    options = ["--trials", "2", "--concurrency", "1"]
    objectives = ["--objective", "val/score", "--objective", "val/forgetting:min"]
    fixed = ["--set", "data=text", "continual.tasks=5", *SMALL.split(), *PLASTIC.split()]
    return FinishedSearch.run(make_cli(), "domains", "liquid", *options, *objectives, *fixed)


def test_corpus_is_written_once_for_all_trials(search):
    corpus = search.folder / "files" / "corpus"
    described = json.loads((corpus / "corpus.json").read_text())["files"]
    assert {name: hashlib.sha256((corpus / name).read_bytes()).hexdigest() for name in described} == {
        name: file["sha256"] for name, file in described.items()
    }
    digests = {data.dataset.digest for run in search.children() for data in run.inputs.dataset_inputs}
    assert len(search.children()) == 2
    assert len(digests) == 1


def test_trials_have_a_score_and_a_forgetting(search):
    assert search.json["outcomes"] == {"completed": 2}
    for trial in search.json["front"]:
        assert set(trial["values"]) == {"val/score", "val/forgetting"}
    assert search.json["best"]["trial_id"] == search.json["front"][0]["trial_id"]
    assert [direction.name for direction in search.study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert all(len(trial.values) == 2 for trial in search.study.trials)


def test_front_is_in_the_note_the_runs_and_the_report(search):
    assert "| trial | val/score:max | val/forgetting:min |" in search.parent.data.tags["mlflow.note.content"]
    for run in search.children():
        assert {"best/val/score", "best/val/forgetting"} <= run.data.metrics.keys()
    printed = search.cli.invoke("domains", script="search/report.py")
    assert printed.stdout.count("*") == len(search.json["front"])


def test_run_of_each_trial_has_the_matrix_as_a_picture(search):
    assert all((artifacts_of(run) / "pictures" / "matrix.png").is_file() for run in search.children())
