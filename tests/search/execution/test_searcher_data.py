"""What the searcher keeps and tells of the data that trials are trained on."""

import pytest

from searchlight.search.study.datasets import get_datasets
from searchlight.search.study.trial import get_reports
from tests.search.execution.searcher_harness import report


def warnings(caplog):
    name = "searchlight.search.execution.report_handler"
    return [record.getMessage() for record in caplog.records if record.name == name]


def digits(digest, use="training"):
    return {"name": "digits", "digest": digest, "source": "", "use": use}


def train(searcher, digests, epoch=1, **more):
    for turn, digest in enumerate(digests):
        searcher.suggest(f"t{turn}")
        report(searcher, f"t{turn}", epoch, 0.3, datasets=[digits(digest), digits("same", "evaluation")], **more)


def test_data_of_a_trial_is_kept_and_told_once(make_searcher):
    searcher, study, watching = make_searcher(trials=1, rungs=(2,))
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, datasets=[digits("a")])
    report(searcher, "t0", 2, 0.2, done=True)
    assert get_datasets(study.get_trial(0)) == [digits("a")]
    assert watching.find("data") == [("data", 0, [digits("a")])]
    assert "datasets" not in get_reports(study.get_trial(0))[1]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("aa", "a", False),
        ("aa", "b", True),
        ("ab", "c", False),  # they differed before: the config says what is taken
        ("", "a", False),
    ],
)
def test_data_that_changed_since_the_last_run_is_told_once(make_searcher, caplog, before, now, told):
    searcher, study, _ = make_searcher(trials=6, rungs=(1,))
    train(searcher, before, done=True)
    assert not warnings(caplog), "within one driver, it is the config that chooses the data"
    later, _, _ = make_searcher(trials=6, rungs=(1,), onto=study)
    train(later, now * 2, done=True)
    line = f"trial {len(before)}: the training data 'digits' changed since the search last ran: its digest was a"
    assert [message.startswith(line) for message in warnings(caplog)] == [True] * told


def test_trial_that_continues_with_other_data_is_told(make_searcher, caplog):
    searcher, study, _ = make_searcher(trials=2, rungs=(2,))
    train(searcher, "ab")
    study.live.clear()
    later, _, _ = make_searcher(trials=2, rungs=(2,), onto=study)
    train(later, "bb", epoch=2, done=True)
    (message,) = warnings(caplog)
    assert message.startswith("trial 0: the training data 'digits' changed")
