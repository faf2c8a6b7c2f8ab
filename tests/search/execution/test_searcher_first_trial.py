"""The first trial of a function, which is tried before others begin."""

import math
import time

import pytest
from ray.tune.search import Searcher

from searchlight.search.execution.stoppers import ALONE_S
from searchlight.search.study.changes import find_changes
from tests.search.execution.searcher_harness import end, interrupt, report


def test_others_begin_once_the_first_trial_of_a_function_has_reported(make_searcher):
    searcher, _, _ = make_searcher(tries_first=True, trials=3, rungs=(3,))
    assert searcher.suggest("t0")["segment"].trial == 0
    assert searcher.suggest("t1") is None
    report(searcher, "t0", 1, 0.3)
    assert searcher.suggest("t1")["segment"].trial == 1
    end(searcher, "t0", "failed", "KeyError: 'x'")
    assert searcher.error is None, "the function works in general"


def test_others_begin_if_the_first_trial_of_a_function_takes_long(make_searcher):
    searcher, _, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    now = time.monotonic()
    searcher.reports.first_trial._clock = lambda: now + ALONE_S + 60
    assert searcher.suggest("t1")["segment"].trial == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_function_that_fails_at_once_ends_its_search_and_is_trained_again(make_searcher, tmp_path, is_late):
    searcher, study, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    if is_late:  # others have begun, and still run
        searcher.reports.first_trial._clock = lambda: math.inf
        searcher.suggest("t1")
    end(searcher, "t0", "failed", "KeyError: 'x'", "Traceback ...", location="train.py, line 3")
    first, second, third, last = searcher.error.problems
    assert first == "trial 0 failed before its first report: KeyError: 'x', at train.py, line 3."
    assert second == f"Its traceback is in {tmp_path / 'errors' / 'trial-0.txt'}."
    assert third.endswith(f"Its --name must be another one, or delete {tmp_path} before.")
    assert f"resume {tmp_path.name}" in last
    assert (tmp_path / "errors" / "trial-0.txt").read_text() == "Traceback ..."
    assert searcher.suggest("t2") == (None if is_late else Searcher.FINISHED)
    searcher.finish(prune=False)
    assert find_changes(study.get_trial(0), is_over=True)[3:5] == ("interrupted", "it failed")
    corrected, _, _ = make_searcher(study, tries_first=True)
    study.live.clear()
    segment = corrected.suggest("t0")["segment"]
    assert (segment.trial, segment.config) == (0, study.get_trial(0).user_attrs["config"])
    interrupt(corrected, "t0")
    assert find_changes(study.get_trial(0), is_over=True).reason == "the search was stopped"


def test_resumed_search_of_a_function_that_has_reported_tries_none(make_searcher):
    searcher, study, _ = make_searcher(rungs=(3,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3)
    interrupt(searcher, "t0")
    resumed, _, _ = make_searcher(study, tries_first=True, rungs=(3,))
    assert [resumed.suggest(f"t{turn}")["segment"].trial for turn in range(2)] == [0, 1]
