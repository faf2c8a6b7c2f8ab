"""Why a search did what it did: where its trials come from, what they were compared with, and where they fail."""

from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import group_by_reason
from searchlight.search.analysis.confirmation import describe_config
from searchlight.search.analysis.result import SearchResult
from searchlight.search.errors import UsageError
from searchlight.search.formatting import SCHEMA, format_trials
from searchlight.search.reporting.status import get_outcome_so_far
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.space.fidelity import cumulative_cost
from searchlight.search.steering.state import build_state, describe_author, is_of
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    get_confirming_run,
    get_reports,
    has_broken_off,
    intermediate_values,
    penalize_violations,
)


def explain_search(record: SearchRecord) -> dict[str, Any]:
    """Return as JSON where trials diverge, are infeasible or fail, and whether the best one is shown to be real."""
    result = SearchResult.from_record(record)
    if result.best is None:
        verdict = "no trial has a result yet"
    elif result.statement or result.unconfirmed:
        verdict = result.statement or f"the confirming runs show {result.unconfirmed}"
    else:
        verdict = (
            f"trial {result.best.trial_id} has the best value of one training each. No confirming run has shown that "
            "it is better under other seeds"
        )
    return {
        "schema": SCHEMA,
        "name": record.name,
        "best": verdict,
        "diverged": [str(each) for each in result.divergence],
        "infeasible": [str(each) for each in result.infeasibility],
        "failed": [
            f"{format_trials([trial.number for trial in alike])}: {alike[0].user_attrs.get('reason', '')}"
            for alike in group_by_reason([trial for trial in record.trials if get_outcome_so_far(trial) == "failed"])
        ],
    }


def explain_trial(record: SearchRecord, number: int) -> dict[str, Any]:
    """Return as JSON where a trial comes from, how it ended, and its rank at each rung that it reached.

    Raises:
        UsageError: There is no such trial.
    """
    trials = {trial.number: trial for trial in record.all_trials}
    if number not in trials:
        raise UsageError(f"--trial must be a trial of {record.name}, but there is no {number}.")
    trial = trials[number]
    return {
        "schema": SCHEMA,
        "name": record.name,
        "trial": number,
        "outcome": get_outcome_so_far(trial),
        "reason": trial.user_attrs.get("reason", ""),
        "origin": _describe_origin(record, trial),
        "commands": [
            f"{command.operation} {describe_author(command)}"
            for command in build_state(record.commands).find("stop", "keep", "extend")
            if number in command.args["trials"]
        ],
        "rungs": _list_ranks(record, trial) if get_confirming_run(trial) is None else [],
    }


def _describe_origin(record: SearchRecord, trial: FrozenTrial) -> str:
    if (run := get_confirming_run(trial)) is not None:
        return f"it trains {describe_config(run.trial)} once more, under the seed of round {run.round}"
    if (parent := trial.user_attrs.get("copied_from")) is not None:
        return (
            f"it continues trial {parent} from epoch {trial.user_attrs['copy']['epoch']}, with values near to its own"
        )
    for command in build_state(record.commands).find("try"):
        if is_of(trial, command):
            return f"it was tried {describe_author(command)}"
    if trial.system_attrs.get("fixed_params"):
        return "it was to be tried first" + (": the task's defaults" if trial is record.default_trial else "")
    told = [other for other in record.trials if _has_ended_before(other, trial)]
    sampler = record.about.get("config", {}).get("sampler", "tpe")
    return f"the sampler, {sampler}, proposed it when {len(told)} trials had ended"


def _has_ended_before(other: FrozenTrial, trial: FrozenTrial) -> bool:
    ended, started = other.datetime_complete, trial.datetime_start
    return ended is not None and started is not None and ended <= started


def _list_ranks(record: SearchRecord, trial: FrozenTrial) -> list[dict[str, Any]]:
    """Return the value and the rank at each reached rung among the trials that have reached it so far.

    A trial of Hyperband is compared within its bracket. As for the scheduler, a value that violates a constraint is
    worse than any other, and trials that diverged or failed later come last.
    """
    ranks, (rungs, peers) = [], _find_peers(record, trial)
    for rung in rungs:
        epochs = {each.number: epoch for each in peers if (epoch := _find_epoch(record, each, rung)) is not None}
        places = {
            each.number: (has_broken_off(each), record.objective.loss(compared[epochs[each.number]]))
            for each in peers
            if each.number in epochs and (compared := penalize_violations(each, record.objective))
        }
        if trial.number in places:
            better = sorted((n for n in places if places[n] < places[trial.number]), key=lambda n: places[n])
            value = intermediate_values(trial)[epochs[trial.number]]
            ranks.append({"rung": rung, "value": value, "rank": len(better) + 1, "of": len(places), "better": better})
    return ranks


def _find_peers(record: SearchRecord, trial: FrozenTrial) -> tuple[Sequence[float], Sequence[FrozenTrial]]:
    """Return the rungs at which a trial is compared, and the trials that it is compared with."""
    rungs, config = record.about.get("rungs", ()), record.about.get("config", {})  # older searches have not kept them
    if not rungs or config["scheduler"] != "hyperband":
        return rungs, record.trials
    ends = rungs[-1], config["reduction_factor"], rungs[0], record.objective.mode, record.unit
    schedule, index = HyperBandScheduler.from_config(*ends), record.trials.index(trial)
    if record.about.get("schedule") != str(schedule):  # the search began in a version with other brackets
        return (), ()
    bracket = schedule.get_bracket(index)
    return bracket.rungs, [t for place, t in enumerate(record.trials) if schedule.get_bracket(place) is bracket]


def _find_epoch(record: SearchRecord, trial: FrozenTrial, rung: float) -> int | None:
    """Return the epoch of the first report at or after the budget `rung`, or None if the trial has not come so far."""
    values = intermediate_values(trial)
    spent = {epoch: float(epoch) for epoch in values}
    if record.unit != "epochs":
        spent = cumulative_cost(get_reports(trial), record.unit)
    return min((epoch for epoch in values if spent.get(epoch, 0.0) >= rung), default=None)
