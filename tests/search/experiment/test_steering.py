"""What commands to a searcher change."""

from functools import partial

import pytest
from ray.tune.search import Searcher

from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.execution.stoppers import GpuTimeMeter
from searchlight.search.samplers.belief import RunningBelief
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.space.search_space import resolve_space
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.state import build_state
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_outcome
from searchlight.trainables.task import searchable
from tests.search.execution.searcher_harness import Config, interrupt, report, searcher_over
from tests.search.experiment.steered_searcher import Driver
from tests.search.objectives import VAL_LOSS


def test_stopped_trial_that_runs_is_halted_and_pruned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5)
    assert driver.give("stop", trials=[0], why="too slow").accepted
    assert driver.halted == [0]
    assert driver.outcomes() == ["interrupted"], "its workers still have it"
    interrupt(driver.searcher, "t0")
    assert driver.study.get_trial(0).user_attrs["reason"] == "stopped by ann: too slow"
    assert driver.outcomes() == ["pruned"]
    assert driver.searcher.suggest("t1")["segment"].trial == 1


def test_stopped_trial_that_waits_is_pruned_at_once(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("stop", trials=[0])
    assert (driver.halted, driver.outcomes()) == ([], ["pruned"])


def test_trial_that_waits_in_the_queue_is_not_stopped(driver):
    driver.searcher.suggest("t0")
    driver.give("try", point={"lr": 0.25})
    assert "trial 1 must have begun, but waits in the queue" in driver.give("stop", trials=[1]).effect


def test_kept_trial_trains_to_its_end_though_it_is_the_worst(driver):
    for number, loss in enumerate([0.9, 0.1, 0.2]):
        driver.searcher.suggest(f"t{number}")
        report(driver.searcher, f"t{number}", 1, loss, done=True)
    assert driver.give("keep", trials=[0]).undo
    segment = driver.searcher.suggest("t3")["segment"]
    assert (segment.trial, segment.epoch, segment.until) == (0, 1, 3)


def test_extended_trial_trains_longer_than_planned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    answer = driver.give("extend", trials=[0], epochs=2)
    assert (answer.effect, answer.undo) == ("trial 0 trains to its full budget, and 2 epochs more", False)
    assert "such as a learning rate" in answer.warnings[0]
    planned = driver.study.get_trial(0).user_attrs["config"]["epochs"]
    segment = driver.searcher.suggest("t1")["segment"]
    assert (segment.until, segment.is_last) == (3, False)
    report(driver.searcher, "t1", 3, 0.5, done=True)
    segment = driver.searcher.suggest("t2")["segment"]
    assert (segment.trial, segment.epoch, segment.until, segment.is_last) == (0, 3, 5, True)
    assert segment.config["epochs"] == max(planned, 5)
    report(driver.searcher, "t2", 5, 0.5, done=True)
    assert driver.outcomes() == ["completed"]


def test_extended_trial_of_a_search_that_ends_has_completed_what_was_planned(driver):
    driver.searcher.suggest("t0")
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.give("extend", trials=[0], epochs=2)
    driver.searcher.suggest("t1")
    report(driver.searcher, "t1", 3, 0.5, done=True)
    driver.searcher.finish(prune=True)
    assert driver.outcomes() == ["completed"]


def test_point_to_try_is_the_next_trial(driver):
    driver.searcher.suggest("t0")
    answer = driver.give("try", point={"lr": "0.25"}, full=True)
    assert answer.effect == "the next trial has lr=0.25, and trains to its full budget"
    segment = driver.searcher.suggest("t1")["segment"]
    assert segment.config["lr"] == 0.25
    report(driver.searcher, "t1", 1, 0.9, done=True)
    assert driver.searcher.suggest("t2")["segment"].trial == segment.trial, "it is kept"
    assert "trial 1 has lr=0.25" in driver.give("try", point={"lr": 0.25}, full=False).effect


def test_trials_of_an_author_stop_once_they_have_taken_its_gpu_hours(driver):
    now = [0.0]
    driver.searcher.limits.stoppers.meter = GpuTimeMeter(clock=lambda: now[0])
    points = [Command("try", {"point": {"lr": lr}}, "agent:ann", gpu_hours=1.0) for lr in (0.25, 0.35, 0.45)]
    assert driver.apply(points[0]).answer.accepted
    assert driver.apply(points[1]).answer.accepted
    driver.searcher.suggest("t0")
    now[0] = 3599.0
    driver.searcher.apply_commands()
    assert driver.halted == []
    now[0] = 3600.0
    driver.searcher.apply_commands()
    assert driver.halted == [0]
    assert driver.study.get_commands()[-1].command.author == "searchlight"
    interrupt(driver.searcher, "t0")
    segment = driver.searcher.suggest("t1")["segment"]
    assert (segment.trial, driver.outcomes()) == (2, ["pruned", "pruned", "interrupted"]), "its next point ends at once"
    reason = "stopped by searchlight: trials of agent:ann have taken their 1 GPU-hours"
    assert [driver.study.get_trial(number).user_attrs["reason"] for number in (0, 1)] == [reason, reason]
    refused = driver.apply(points[2]).answer
    assert refused.effect == "trials of agent:ann must take at most 1 GPU-hours, but took 1."
    assert driver.give("try", point={"lr": 0.45}).accepted, "others may go on"


def test_no_trial_is_proposed_in_a_region_to_avoid(driver):
    driver.give("avoid", region="lr>=0.2")
    driver.give("narrow", ranges={"lr": "0.1..0.9"})
    values = [driver.searcher.suggest(f"t{number}")["segment"].config["lr"] for number in range(6)]
    assert all(0.1 <= value < 0.2 for value in values)


def test_no_config_is_tried_twice_if_commands_leave_no_other(make_searcher, tmp_path, caplog):
    driver = Driver(make_searcher(trials=5, searched={"lr": "0.0..1.0:step=0.25"}), tmp_path)
    assert driver.give("avoid", region="lr>=0.5").undo
    for number, loss in enumerate([0.5, 0.4]):
        driver.searcher.suggest(f"t{number}")
        report(driver.searcher, f"t{number}", 1, loss, done=True)
    continued = driver.searcher.suggest("t2")["segment"]
    assert (continued.trial, continued.epoch) == (1, 1), "the better one is trained to its end"
    report(driver.searcher, "t2", 3, 0.3, done=True)
    assert driver.searcher.suggest("t3") == Searcher.FINISHED
    assert {trial.params["lr"] for trial in driver.study.get_trials()} == {0.0, 0.25}
    assert caplog.text.count("all configs that commands leave were tried") == 1
    driver.give("try", point={"lr": 0.75})
    assert driver.searcher.suggest("t4")["segment"].config["lr"] == 0.75


def test_later_range_of_a_parameter_replaces_the_earlier_one(driver):
    driver.give("narrow", ranges={"lr": "0.1..0.2"})
    assert driver.give("narrow", ranges={"lr": "0.5..0.9"}).accepted
    assert 0.5 <= driver.searcher.suggest("t0")["segment"].config["lr"] <= 0.9


@pytest.mark.parametrize(
    "by", [lambda given: given.id, lambda given: "1", lambda given: 1], ids=["id", "text", "number"]
)
def test_undone_region_is_proposed_again(driver, by):
    given = Command("avoid", {"region": "lr>=0.02"})
    driver.apply(given)
    driver.give("undo", command=by(given))
    assert any(driver.searcher.suggest(f"t{number}")["segment"].config["lr"] > 0.02 for number in range(3))


def test_command_whose_undo_was_undone_can_be_undone_again(driver):
    given = Command("avoid", {"region": "lr>=0.02"})
    undo = Command("undo", {"command": given.id})
    for command in (given, undo, Command("undo", {"command": undo.id})):
        assert driver.apply(command).answer.accepted
    assert driver.study.allows is not None
    assert driver.give("undo", command=given.id).accepted
    assert driver.study.allows is None
    assert "was undone" in driver.give("undo", command=given.id).effect


def test_paused_search_gives_no_segment_and_halts_trials(driver):
    driver.searcher.suggest("t0")
    driver.give("pause", drain=False)
    assert driver.halted == [0]
    interrupt(driver.searcher, "t0")
    assert driver.searcher.suggest("t1") is None
    driver.give("continue")
    assert driver.searcher.suggest("t2")["segment"].trial == 0, "it goes on where it was"


def test_draining_search_lets_trials_reach_their_rung(driver):
    driver.searcher.suggest("t0")
    driver.give("pause", drain=True)
    assert driver.halted == []
    assert report(driver.searcher, "t0", 1, 0.5, done=True) is None
    assert driver.searcher.suggest("t1") is None


def test_paused_search_ends_when_it_is_stopped(driver):
    driver.give("pause", drain=False)
    driver.searcher.limits.stopping.set()
    assert driver.searcher.suggest("t0") == Searcher.FINISHED


def test_budget_of_trials_and_concurrency_is_changed(driver):
    driver.give("budget", trials=2, concurrency=1)
    driver.searcher.suggest("t0")
    assert driver.searcher.suggest("t1") is None, "one at a time"
    report(driver.searcher, "t0", 1, 0.5, done=True)
    driver.searcher.suggest("t2")
    report(driver.searcher, "t2", 1, 0.4, done=True)
    driver.give("budget", trials=3, concurrency=5)
    assert driver.searcher.suggest("t3")["segment"].trial == 2
    assert driver.searcher.limits.trials == 3


def test_lower_concurrency_takes_no_gang_from_a_trial_that_goes_on(make_searcher, tmp_path):
    freed = []
    driver = Driver(make_searcher(trials=6), tmp_path, free_gangs=freed.append)
    driver.searcher.schedule = MedianStoppingScheduler(epochs=3, grace_period=2, mode="min")
    for name in ("t0", "t1", "t2"):
        driver.searcher.suggest(name)
    driver.give("budget", concurrency=1)
    assert report(driver.searcher, "t0", 2, 0.5, done=True, checkpoint=None).trial == 0
    assert freed == [{0, 1, 2}, {0, 1, 2}], "no gang of these trials"
    report(driver.searcher, "t0", 3, 0.5, done=True, checkpoint=None)
    assert (driver.outcomes()[0], freed[-1]) == ("completed", {1, 2}), "its gang leaves with it"
    assert driver.searcher.suggest("t3") is None


def test_trial_without_a_checkpoint_goes_on_to_its_end_while_the_search_drains(driver):
    driver.searcher.schedule = MedianStoppingScheduler(epochs=3, grace_period=1, mode="min")
    driver.searcher.suggest("t0")
    driver.searcher.suggest("t1")
    driver.give("pause", drain=True)
    assert report(driver.searcher, "t0", 1, 0.5, done=True) is None, "it continues from its checkpoint"
    assert report(driver.searcher, "t1", 1, 0.5, done=True, checkpoint=None).trial == 1
    driver.give("pause", drain=False)
    assert report(driver.searcher, "t1", 2, 0.5, done=True, checkpoint=None) is None


def test_paused_search_frees_idle_gangs(make_searcher, tmp_path):
    freed = []
    driver = Driver(make_searcher(trials=6), tmp_path, free_gangs=lambda live: freed.append(len(live)))
    driver.searcher.suggest("t0")
    driver.give("keep", trials=[0])
    assert freed == []
    driver.give("pause", drain=True)
    report(driver.searcher, "t0", 1, 0.5, done=True)
    assert freed == [1, 0]


@pytest.mark.parametrize("sampler", ["tpe", "mixture"])
def test_belief_is_followed_until_results_contradict_it(make_searcher, tmp_path, sampler):
    (tmp_path / "mixed").mkdir()
    study, store = create_study(tmp_path / "mixed", partial(create_sampler, sampler, 0), [VAL_LOSS])
    driver = Driver(searcher_over(study, tmp_path / "mixed", 60), tmp_path)
    answer = driver.give("believe", why="a paper says so", point={"lr": "0.9"})
    assert answer.effect.startswith("half of the next proposals are near lr=0.9")
    assert study.beliefs == {"lr": (RunningBelief(0.9, 0),)}
    begun = 0
    while study.beliefs:
        segment = driver.searcher.suggest(f"t{begun}")["segment"]
        report(
            driver.searcher, f"t{begun}", int(segment.until), segment.config["lr"], done=True
        )  # the smaller the better
        begun += 1
    near = [trial for trial in study.get_trials() if trial.params["lr"] > 0.7]
    assert len(near) >= 4
    assert "believe by searchlight" in driver.told[-1]
    assert "trials near lr=0.9 are worse than" in driver.told[-1]
    assert driver.told[-1].endswith("lr=0.9 is believed no more")
    later = Driver(searcher_over(study, tmp_path / "mixed", 60), tmp_path)
    assert later.study.beliefs == {}, "the log has it"
    store.close()


class Pair(Config):
    decay: float = searchable(0.5, low=0.0, high=1.0)


def test_beliefs_that_the_same_results_contradict_are_dropped_once(tmp_path):
    study, store = create_study(tmp_path, partial(create_sampler, "mixture", 0), [VAL_LOSS])
    searcher, *others = searcher_over(study, tmp_path, 60)
    searcher.space = resolve_space(Pair, {"precision": "fp32"}, {})
    driver = Driver((searcher, *others), tmp_path)
    driver.give("avoid", region="lr>=0.8 and decay<=0.2")
    given = Command("believe", {"point": {"lr": 0.9, "decay": "0.1,0.5"}}, is_preview=True)
    (told,) = driver.apply(given).answer.warnings
    assert told.startswith("a region to avoid has some of these, lr >= 0.8 and decay <= 0.2")
    driver.give("believe", point={"lr": 0.9, "decay": 0.9})
    for value in [0.9] * 5 + [0.1] * 5:
        number = study.create_copy(searcher.space, {"lr": value, "decay": value}, {})
        study.report(number, 1, value, {"metrics": {"val/loss": value}})
        study.end(number, "pruned")
    driver.steering.update_trials()
    dropped = [entry.command.args["point"] for entry in driver.steering.log[2:]]
    assert dropped == [{"lr": [0.9]}, {"decay": [0.9]}]
    assert study.beliefs == {}
    store.close()


def test_one_of_several_values_is_believed_no_more_once_results_contradict_it(tmp_path):
    study, store = create_study(tmp_path, partial(create_sampler, "tpe", 0), [VAL_LOSS])
    driver = Driver(searcher_over(study, tmp_path, 60), tmp_path)
    told = driver.give("believe", point={"lr": "0.9,0.1,0.5"}).effect
    assert told.startswith("half of the next proposals are near lr=0.9, 0.1 or 0.5")
    for value in [0.9] * 5 + [0.1] * 5 + [0.5] * 5:
        number = study.create_copy(driver.searcher.space, {"lr": value}, {})
        study.report(number, 1, value, {"metrics": {"val/loss": value}})
        study.end(number, "pruned")
    driver.steering.update_trials()
    assert study.beliefs == {"lr": (RunningBelief(0.1, 0), RunningBelief(0.5, 0))}, "as old as they were"
    assert driver.told[-1].endswith(": lr=0.9 is believed no more")
    assert driver.give("believe", point={"lr": "0.5"}, drop=True).effect == "lr=0.5 is believed no more"
    assert study.beliefs == {"lr": (RunningBelief(0.1, 0),)}
    refused = driver.give("believe", point={"lr": "0.5"}, drop=True).effect
    assert refused == "a value to drop must be one that is believed in, but got lr=0.5."
    driver.give("believe", point={"lr": [0.1, 0.2]})
    assert study.beliefs == {"lr": (RunningBelief(0.1, 15), RunningBelief(0.2, 15))}, "it begins anew"
    driver.give("undo", command="5")
    driver.give("undo", command="1")
    assert study.beliefs == {}, "what the driver has dropped does not come back"
    store.close()


def test_search_believes_once_in_what_its_options_say(tmp_path):
    study, store = create_study(tmp_path, partial(create_sampler, "tpe", 0), [VAL_LOSS])
    driver = Driver(searcher_over(study, tmp_path, 60), tmp_path)
    driver.steering.believe({"lr": "0.9,0.1", "precision": "bf16"})
    assert study.beliefs == {"lr": (RunningBelief(0.9, 0), RunningBelief(0.1, 0))}
    lost, _ = driver.told
    assert lost.startswith("--believe precision must be searched, but it is fixed to fp32"), "no node can run it"
    driver.give("undo", command="1")
    later = Driver(searcher_over(study, tmp_path, 60), tmp_path)
    later.steering.believe({"lr": "0.9,0.1"})  # a resumed search has the same options
    assert later.study.beliefs == {}
    store.close()


def test_belief_of_a_search_that_goes_on_with_another_sampler_is_not_followed(tmp_path):
    study, store = create_study(tmp_path, partial(create_sampler, "tpe", 0), [VAL_LOSS])
    driver = Driver(searcher_over(study, tmp_path, 60), tmp_path)
    driver.give("believe", point={"lr": 0.9})
    store.close()
    study, store = create_study(tmp_path, partial(create_sampler, "random", 0), [VAL_LOSS])
    later = Driver(searcher_over(study, tmp_path, 60), tmp_path)
    for value in [0.9] * 5 + [0.1] * 5:
        number = study.create_copy(later.searcher.space, {"lr": value}, {})
        study.report(number, 1, value, {"metrics": {"val/loss": value}})
        study.end(number, "pruned")
    later.steering.update_trials()
    assert (study.beliefs, len(later.steering.log)) == ({}, 1)
    store.close()


def test_belief_of_an_older_log_is_one_value():
    commands = [Command("believe", {"point": {"lr": 0.9, "decay": 0.1}}), Command("believe", {"point": {"lr": None}})]
    entries = [LogEntry(number, command, Answer(True, "")) for number, command in enumerate(commands, 1)]
    assert build_state(entries[:1]).get_beliefs() == {"lr": (RunningBelief(0.9, 0),), "decay": (RunningBelief(0.1, 0),)}
    assert build_state(entries).get_beliefs() == {"decay": (RunningBelief(0.1, 0),)}


def test_belief_is_undone(make_searcher, tmp_path):
    (tmp_path / "mixed").mkdir()
    study, store = create_study(tmp_path / "mixed", partial(create_sampler, "mixture", 0), [VAL_LOSS])
    driver = Driver(searcher_over(study, tmp_path / "mixed", 60), tmp_path)
    given = Command("believe", {"point": {"lr": 0.9}})
    driver.give("avoid", region="lr>=0.8")
    told = "a region to avoid has some of these, lr >= 0.8: no trial is proposed there"
    assert driver.apply(given).answer.warnings == [told]
    assert driver.apply(Command("believe", {"point": {"lr": "0.1,0.9"}}, is_preview=True)).answer.warnings == [told]
    assert driver.apply(Command("believe", {"point": {"lr": "0.1,0.7"}}, is_preview=True)).answer.warnings == []
    driver.give("undo", command=given.id)
    assert study.beliefs == {}
    assert "lr must lie in the searched range" in driver.give("believe", point={"lr": 7}).effect
    assert "a value must be given" in driver.give("believe", point={}).effect
    store.close()


def test_replayed_log_gives_the_same_trials(make_searcher, tmp_path):
    def play(folder, log):
        """Run a search whose trials are as good as their lr is small, with the commands of a log."""
        folder.mkdir()
        study, store = create_study(folder, partial(create_sampler, "tpe", 0), [VAL_LOSS])
        driver, waiting = Driver(searcher_over(study, folder, 24), folder), [*log]
        for turn in range(60):
            while waiting and waiting[0].trials <= study.get_next_number():
                driver.apply(waiting.pop(0).command)
            if (given := driver.searcher.suggest(f"t{turn}")) in (None, Searcher.FINISHED):
                break
            segment = given["segment"]
            report(driver.searcher, f"t{turn}", int(segment.until), segment.config["lr"], done=True)
        assert not waiting
        trials = [(trial.params, trial.intermediate_values, get_outcome(trial)) for trial in study.get_trials()]
        store.close()
        return trials, driver.steering.log

    commands = [
        (3, Command("avoid", {"region": "lr>=0.8"})),
        (5, Command("try", {"point": {"lr": 0.25}, "full": True})),
        (12, Command("narrow", {"ranges": {"lr": "0.1..0.7"}})),
        (14, Command("budget", {"trials": 20})),
    ]
    plain, _ = play(tmp_path / "plain", [])
    given = [LogEntry(0, command, Answer(True, ""), trials) for trials, command in commands]
    trials, log = play(tmp_path / "first", given)
    assert (len(plain), len(trials), len(log)) == (24, 20, 4)
    assert play(tmp_path / "second", log)[0] == trials
    assert trials[:3] == plain[:3]
    assert trials != plain[:20]


def test_finish_ends_the_search_of_this_driver(driver):
    driver.give("pause", drain=True)
    answer = driver.give("finish", why="good enough")
    assert answer.effect == "no trial continues after its next rung or end", "no confirming runs are planned"
    assert answer.warnings == ["the search is paused, and ends once it continues"]
    assert driver.ended == ["finished by ann: good enough"]


def test_finish_sets_the_number_of_confirming_runs(make_searcher, tmp_path):
    made = make_searcher(trials=6)
    made[0].confirmation = ConfirmationPlan((VAL_LOSS,), 0, runs=12)
    driver = Driver(made, tmp_path)
    driver.searcher.suggest("t0")
    assert driver.give("finish", confirm=0).effect == "--confirm must be above 0, but got 0."
    assert driver.give("finish", confirm=4).effect.endswith("; the best ones are confirmed by 4 runs at most")
    assert driver.searcher.confirmation.runs == 4


def test_confirming_run_is_named_as_such(driver):
    number = driver.study.create_copy(driver.searcher.space, {}, {"confirms": {"trial": None, "round": 0, "seed": 1}})
    assert (
        driver.give("stop", trials=[number]).effect == "trial 0 must be one of the search, but it is a confirming run."
    )


def test_confirming_runs_pause_and_no_command_begins_a_trial(driver):
    number = driver.study.create_copy(driver.searcher.space, {}, {"confirms": {"trial": None, "round": 0, "seed": 1}})
    driver.study.live.add(number)
    driver.searcher.limits.search_over.set()
    assert "the search has ended: no trial begins any more" in driver.give("try", point={"lr": 0.25}).warnings
    driver.study.takes_beliefs = True
    for operation, args in [
        ("avoid", {"region": "lr>=0.9"}),
        ("narrow", {"ranges": {"lr": "0.1..0.8"}}),
        ("believe", {"point": {"lr": 0.25}}),
        ("budget", {"trials": 9}),
        ("undo", {"command": "2"}),
    ]:
        assert driver.give(operation, **args).warnings == ["the search has ended: no trial begins any more"]
    assert "must not be over" in driver.give("finish").effect
    driver.give("pause", drain=False)
    assert driver.halted == [number]
    assert driver.searcher.suggest("t0") is None


def test_pause_and_finish_tell_what_is_lost(driver):
    driver.searcher.suggest("t0")
    driver.searcher.suggest("t1")
    report(driver.searcher, "t1", 1, 0.5)
    driver.give("try", point={"lr": 0.25})
    assert driver.give("pause").warnings == [], "a Task continues from the window where it stopped"
    driver.give("continue")
    driver.steering._is_of_task = False
    lost = "trial 0 would begin again, without a checkpoint. With --drain, nothing is lost"
    assert driver.give("pause").warnings == [lost]
    driver.give("continue")
    told = "trials 0, 1 will end at the next rung or report, pruned or interrupted if it is not the last"
    assert driver.give("finish").warnings == ["1 point to try will not be trained", told]


def test_command_is_undone_by_its_number_in_the_log(driver):
    driver.give("avoid", region="lr>=0.9")
    assert driver.give("avoid", region="lr<0.02").accepted
    assert "there is no '3'" in driver.give("undo", command="3").effect
    assert driver.give("undo", command="2").effect.endswith("It was: no trial is proposed with lr < 0.02")
    assert [entry.command.args["command"] for entry in driver.steering.log[3:]] == [driver.steering.log[1].command.id]
