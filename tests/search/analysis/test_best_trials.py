import math
import re

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from searchlight.search.analysis.best_trials import (
    BestReports,
    count_outcomes,
    find_best,
    find_incumbent,
    select_comparable_trials,
)
from searchlight.search.space.objectives import Objective
from tests.conftest import ROOT
from tests.search.objectives import VAL_LOSS, VAL_SCORE
from tests.search.reporting.html.page_studies import many, trial
from tests.search.stored_studies import Search

SCORE_AS_LOSS = Objective("val/score", "min")


def test_outcomes_are_counted_by_name(trials):
    assert count_outcomes(trials) == dict.fromkeys(["completed", "pruned", "diverged", "failed", "interrupted"], 1)


def test_best_comes_from_completed_and_pruned_trials(trials):
    best = find_best(trials, VAL_SCORE)
    assert (best.trial_id, best.value, best.checkpoint) == (1, 0.9, "1-2.pt")
    assert best.config["inner"] == {"kind": "a"}
    assert find_best(trials, SCORE_AS_LOSS).value == 0.1
    assert find_best(trials[2:], VAL_SCORE) is None


def test_incumbent_is_the_first_of_the_best_trials():
    for seed in range(5):
        trials = many(30, seed=seed).trials
        assert find_incumbent(trials, VAL_SCORE).number == find_best(trials, VAL_SCORE).trial_id
    equal = [trial(0, scores=[0.5]), trial(1, scores=[0.5]), trial(2, scores=[0.4])]
    assert find_incumbent(equal, VAL_SCORE).number == 0
    assert find_incumbent(equal, SCORE_AS_LOSS).number == 2
    assert find_incumbent(equal[1:], VAL_SCORE).number == 1


def test_unfinished_trials_compare_only_without_any_result():
    waiting = [trial(0, "interrupted", [0.5]), trial(1, "interrupted"), trial(2, "diverged", [0.9])]
    assert [trial.number for trial in select_comparable_trials(waiting)] == [0]
    assert find_incumbent(waiting, VAL_SCORE).number == 0
    assert find_best(waiting, VAL_SCORE) is None
    settled = [*waiting, trial(3, "pruned", [0.1])]
    assert [trial.number for trial in select_comparable_trials(settled)] == [3]
    assert find_best(settled, VAL_SCORE).trial_id == 3


def test_best_reports_keep_all_objectives_of_one_report():
    bests = BestReports([VAL_SCORE, Objective("speed", "max")])
    assert bests.find_incumbent() is None
    for epoch, metrics in enumerate([(0.5, 1.0), (0.75, 2.0), (0.75, 9.0), (0.875, math.inf)], start=1):
        bests.record_report(3, epoch, dict(zip(["val/score", "speed"], metrics, strict=True)), 10.0 * epoch)
    best = bests.get_best(3)
    assert (best.epoch, best.point, best.last_at) == (2, {"val/score": 0.75, "speed": 2.0}, 30.0)
    bests.record_report(1, 1, {"val/score": 0.75, "speed": 3.0})
    assert bests.find_incumbent() == (3, best)
    bests.discard(3)
    assert bests.find_incumbent()[0] == 1


def test_documented_code_reads_the_best_trial_of_a_search(tmp_path, monkeypatch):
    search = Search(tmp_path / "runs", "NAME", objective=VAL_LOSS)
    search.run(0.5, 0.3, 0.4)
    search.run(0.1, 0.9, outcome="pruned")
    search.run(0.05, outcome="diverged")
    search.run(0.01, outcome="failed")
    search.store.close()
    path = str(tmp_path / "runs" / "NAME" / "study.journal")
    study = optuna.load_study(study_name="NAME", storage=JournalStorage(JournalFileBackend(path)))
    assert (study.best_trial.number, study.best_value) == (0, 0.3), "Optuna counts completed trials alone"
    assert study.trials[1].value == 0.9, "and the last report of a pruned one"
    page = (ROOT / "docs" / "resume.md").read_text(encoding="utf-8")
    ours, optunas = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"study": study}
    exec(ours, names)
    best = names["best"]
    assert (best.trial_id, best.value) == (1, 0.1)
    assert [(trial.trial_id, trial.values) for trial in names["front"]] == [(1, {"val/loss": 0.1})]
    exec(optunas, names)
    assert names["best"].number == best.trial_id
