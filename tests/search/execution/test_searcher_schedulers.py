"""The searcher over a real study, with schedules that end trials and copy them."""

from pathlib import Path

import pytest
from optuna.trial import TrialState

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.schedulers.pbt import PopulationBasedTraining
from tests.search.execution.searcher_harness import lose


def population(gangs, losses=(0.4, 0.1, 0.2, 0.3), trials=6, epochs=4, **fixed):
    """A population of four whose members have trained for an epoch."""
    made = gangs(PopulationBasedTraining(4, 1, epochs, "min", 0), trials, precision="fp32", **fixed)
    made.study.enqueue(made.space.get_defaults())
    for loss in losses:
        made.train(made.ask(), [loss])
    return made


def test_trial_below_the_median_ends_and_the_next_begins(gangs):
    made = gangs(MedianStoppingScheduler(3, 1, "min"))
    for number, loss in enumerate((0.1, 0.2, 0.3)):
        assert made.train(made.ask(), [loss]).trial == number, "it goes on in the gang that holds it"
    assert made.train(made.ask(), [0.9]) is None
    assert made.outcomes[3] == "pruned"
    assert made.ask()[1].trial == 4
    assert made.events[-2:] == [("pruned", 3, "below the median of 3 trials at epoch 1"), ("started", 4, None)]
    made.searcher.finish(prune=True)
    assert made.outcomes[:3] == ["interrupted"] * 3, "nobody else is pruned because the search ends"


def test_copy_has_no_values_that_commands_exclude(gangs):
    made, refused = population(gangs), []
    made.study.allows = lambda values: bool(refused) or refused.append(values["lr"])
    segment = made.ask()[1]
    assert segment.copied
    assert refused
    assert segment.config["lr"] not in (*refused, made.study.get_trial(1).params["lr"])


def test_point_to_try_begins_in_a_full_population(gangs):
    made = population(gangs)
    made.study.enqueue({"lr": 0.25})
    name, segment = made.ask()
    assert (segment.trial, segment.config["lr"], segment.epoch, segment.until) == (4, 0.25, 0, 1)
    made.train((name, segment), [0.9])
    assert made.outcomes == ["interrupted"] * 5, "nobody is replaced by it"


def test_point_to_try_waits_once_the_budget_is_spent(gangs):
    made = population(gangs, trials=4)
    made.study.enqueue({"lr": 0.25})
    assert made.ask()[1].trial != 4


def test_kept_member_of_a_full_population_is_not_replaced(gangs):
    made = population(gangs)
    made.searcher.controls.kept = frozenset({0})
    asked = made.ask()
    assert (asked[1].trial, asked[1].epoch, asked[1].until) == (0, 1, 4), "it is the worst, and goes on"
    made.train(asked, [0.4, 0.4, 0.4])
    assert made.outcomes[0] == "completed"


def test_copy_of_the_best_replaces_the_worst(gangs):
    made = population(gangs)
    _, segment = made.ask()
    assert (segment.trial, segment.epoch, segment.until) == (4, 1, 2)
    assert segment.checkpoints == [segment.copied, None]
    assert Path(segment.copied).read_text() == "weights of 1 at 1"
    assert Path(segment.copied).parent == made.folder / "checkpoints" / "4"
    copy, loser = made.study.get_trial(4), made.study.get_trial(0)
    assert (copy.user_attrs["copied_from"], copy.state) == (1, TrialState.RUNNING)
    assert copy.params["lr"] == segment.config["lr"] == copy.user_attrs["config"]["lr"]
    assert copy.params["lr"] != made.study.get_trial(1).params["lr"]
    assert loser.user_attrs["reason"] == "replaced by a copy of 1"
    assert made.events[-2:] == [("started", 4, 1), ("pruned", 0, "replaced by a copy of 1")]


@pytest.mark.parametrize("changed", [False, True])
def test_copy_begins_with_the_micro_batches_that_fit(gangs, changed):
    made = population(gangs)
    made.study.record_micro_batches(1, split := {"epochs": 3, "lr": 7.0} if changed else {"epochs": 3})
    _, segment = made.ask()
    assert segment.copied
    copy = made.study.get_trial(segment.trial)
    # The learning rate differs from that of the original, as a batch size may.
    assert copy.user_attrs.get("micro_batches") == (None if changed else split)
    assert segment.config == {**copy.user_attrs["config"], **({} if changed else split)}


def test_copy_keeps_its_beginning_when_the_original_ends(gangs):
    made = population(gangs, epochs=2)
    copy = made.ask()
    made.train(made.ask(), [0.05])  # its second epoch is its best: the checkpoint of the first is dropped
    assert made.outcomes[1] == "completed"
    assert not (made.folder / "checkpoints" / "1" / "epoch-1-a.pt").exists()
    assert Path(copy[1].copied).read_text() == "weights of 1 at 1"
    assert Path(f"{copy[1].copied}.sha256").exists()
    made.train(copy, [0.05])
    assert made.outcomes[4] == "completed"
    assert sorted(p.name for p in Path(copy[1].folder).iterdir()) == ["epoch-2-a.pt", "epoch-2-a.pt.sha256"]


def test_copy_continues_from_its_own_checkpoint_or_its_beginning(gangs):
    made = population(gangs, trials=5)
    first = made.ask()
    lose(made.searcher, first[0])
    for newest, epoch in (([], 1), (["epoch-2-a.pt"], 2)):
        asked = [made.ask() for _ in range(4)]
        assert made.ask() is None, "a copy counts as a trial, of which there are no more"
        (own,) = [each for each in asked if each[1].trial == 4]
        assert [Path(path).name for path in own[1].checkpoints[: len(newest)]] == newest
        assert (own[1].epoch, own[1].checkpoints[len(newest) :]) == (epoch, [first[1].copied, None])
        assert own[1].copied == first[1].copied
        made.train(own, [0.05])
        for name, segment in asked:
            if segment.trial != 4:
                lose(made.searcher, name)


def test_driver_killed_between_copy_and_end_loses_no_place(gangs, monkeypatch):
    made = population(gangs)
    with monkeypatch.context() as dying:
        dying.setattr(made.study, "end", lambda *_: 1 / 0)
        made.searcher.suggest("t99")
    assert isinstance(made.searcher.error, ZeroDivisionError)
    assert made.study.get_trial(0).state == made.study.get_trial(4).state == TrialState.RUNNING
    made.begin("b")
    segments = [made.ask()[1] for _ in range(4)]
    assert {(segment.trial, segment.attempt) for segment in segments} == {(n, "b") for n in (1, 2, 3, 4)}
    assert made.study.get_trial(0).user_attrs["reason"] == "replaced by a copy of 1"
    (copy,) = [segment for segment in segments if segment.trial == 4]
    assert Path(copy.checkpoints[0]).read_text() == "weights of 1 at 1"
    assert made.ask() is None
    assert len(made.outcomes) == 5


def test_task_that_refuses_all_neighbors_gets_an_exact_copy(gangs, caplog):
    made = population(gangs, only="0.5", trials=40)
    assert {event[0] for event in made.events} == {"started", "reported", "infeasible"}
    copies = [trial for trial in made.study.get_trials() if "copied_from" in trial.user_attrs]
    assert copies
    assert {trial.params["lr"] for trial in copies} == {0.5}
    assert "the task refused 20 combinations near to {'lr': 0.5}" in caplog.text


def test_copy_without_a_checkpoint_trains_from_the_start(gangs, caplog):
    made = population(gangs)
    (made.folder / "checkpoints" / "1" / "epoch-1-a.pt").unlink()
    _, segment = made.ask()
    assert (segment.trial, segment.epoch, segment.checkpoints) == (4, 0, [None])
    assert "trial 1 has no checkpoint to copy: trial 4 starts without one" in caplog.text


def test_complete_trial_of_a_killed_driver_ends_as_completed(gangs):
    made = gangs(ASHAScheduler.without_stopping(1, "min"), trials=1)
    made.ask()
    made.study.report(0, 1, 0.5, {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": 0.0})
    made.begin("b")
    made.searcher.finish(prune=True)  # at once, as when its target has been met
    assert (made.outcomes, made.study.get_trial(0).value) == (["completed"], 0.5)


def test_resumed_search_compares_new_trials_with_pruned_ones(gangs):
    made = gangs(ASHAScheduler.from_config(9, 3, 1, "min"), trials=3)
    for loss in (0.1, 0.2, 0.3):
        made.train(made.ask(), [loss])
    made.searcher.finish(prune=True)
    assert made.outcomes == ["pruned"] * 3
    made.trials = 7
    made.begin("b")
    for _ in range(3):
        made.train(made.ask(), [0.9])
    _, segment = made.ask()
    assert (segment.trial, segment.epoch) == (6, 0), "nobody is promoted who is worse than those"
