import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from searchlight.search.analysis.infeasibility import describe_nearest, find_violated_constraints, list_split_trials
from searchlight.search.space.objectives import Objective

LOSS = Objective("val/loss", "min")
SPACE = {
    "width": IntDistribution(8, 128),
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "precision": CategoricalDistribution(["fp32", "bf16"]),
}


def draw_trials(count, end, seed=0):
    """Return trials drawn at random, each with the user attributes and intermediate values that `end` gives."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trials = []
    for number in range(count):
        params = study.ask(SPACE).params
        attributes, values = end(params)
        trial = optuna.trial.create_trial(
            state=TrialState.PRUNED,
            params=params,
            distributions=SPACE,
            user_attrs=attributes,
            intermediate_values=values,
        )
        trial.number = number
        trials.append(trial)
    return trials


def lacking(constraint):
    return {"outcome": "infeasible", "infeasibility": {"constraint": constraint, "violation": 1.0}}, {}


def reporting(latency, outcome=""):
    violations = {"val/latency_ms<=20": latency - 20}
    outcome = outcome or ("infeasible" if latency > 20 else "pruned")
    return {"outcome": outcome, "report/1": {"metrics": {}, "violations": violations}}, {1: 0.5}


def test_region_of_a_lack_of_memory_is_found():
    def end(params):
        return lacking("memory") if params["width"] >= 64 else ({"outcome": "pruned"}, {1: 0.5})

    trials = draw_trials(40, end)
    (found,) = find_violated_constraints(trials, LOSS)
    lost = sum(trial.params["width"] >= 64 for trial in trials)
    (condition,) = found.region.conditions
    assert (found.constraint, found.infeasible, found.trials) == ("memory", lost, 40)
    assert (condition.parameter, condition.relation) == ("width", ">=")
    assert str(found).startswith(f"memory {lost} of 40, where {condition} ({lost} of {lost} there, 0 of ")


def test_few_infeasible_trials_show_no_region():
    answers = iter([True, True])
    (found,) = find_violated_constraints(
        draw_trials(30, lambda _: lacking("memory") if next(answers, False) else ({"outcome": "completed"}, {})), LOSS
    )
    assert str(found) == "memory 2 of 30"


def test_trial_counts_only_where_its_end_is_known():
    """A trial without memory says nothing of the latency, nor does one whose values were refused of memory."""

    def end(params):
        if params["width"] >= 96:
            return lacking("memory")
        if params["width"] < 16:
            return lacking("build")
        if params["lr"] < 1e-4:
            return {"outcome": "failed"}, {}
        return reporting(25.0 if params["precision"] == "fp32" else 10.0)

    trials = draw_trials(60, end)
    found = {each.constraint: each for each in find_violated_constraints(trials, LOSS)}
    count = {
        name: sum(trial.user_attrs.get("infeasibility", {}).get("constraint") == name for trial in trials)
        for name in ("memory", "build")
    }
    trained = sum("report/1" in trial.user_attrs for trial in trials)
    assert (found["memory"].infeasible, found["memory"].trials) == (count["memory"], count["memory"] + trained)
    assert (found["build"].infeasible, found["build"].trials) == (count["build"], count["build"] + trained)
    assert found["val/latency_ms<=20"].trials == trained
    assert [str(each) for each in found["val/latency_ms<=20"].region.conditions] == ["precision != bf16"]


def test_diverged_trial_is_not_infeasible():
    trials = draw_trials(20, lambda _: reporting(25.0, "diverged"))
    assert find_violated_constraints(trials, LOSS) == []


def test_split_trial_is_listed_with_its_micro_batches():
    trials = draw_trials(2, lambda _: ({"outcome": "pruned"}, {}))
    trials[1].user_attrs["micro_batches"] = {"batch_size": 8, "accumulation": 4}
    assert list_split_trials(trials) == ["trial 1 with batch_size=8, accumulation=4"]


def test_nearest_trial_is_named_if_none_meets_the_constraints():
    latencies = iter([25.0, 22.0, 30.0])
    trials = draw_trials(3, lambda _: reporting(next(latencies)))
    line = describe_nearest(trials, LOSS)
    missed = "which misses val/latency_ms<=20 by 2: val/loss 0.5, width="
    assert line.startswith(f"no trial meets the constraints; the nearest is trial 1, {missed}")
    trials[2].user_attrs["outcome"] = "pruned"
    assert describe_nearest(trials, LOSS) == ""


def test_trials_without_reports_are_not_near():
    assert describe_nearest(draw_trials(3, lambda _: lacking("memory")), LOSS) == ""
