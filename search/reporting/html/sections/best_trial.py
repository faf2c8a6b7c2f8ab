"""The best trial, and its gain over the task's defaults."""

from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import (
    compare_at_equal_epochs,
    describe_metrics,
    find_incumbent,
    find_ties,
    get_flat_config,
    select_comparable_trials,
)
from searchlight.search.formatting import format_change, format_trials, format_value, pluralize
from searchlight.search.reporting.html.template import Section
from searchlight.search.space.search_space import Parameter
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    WITH_RESULT,
    get_best_epoch,
    get_best_value,
    get_outcome,
    get_reports,
    intermediate_values,
)


def build(record: SearchRecord) -> Section | None:
    """Return the best trial's parameters next to the defaults, or None if there is no best trial."""
    objective, defaults = record.objective, record.default_trial
    trial = find_incumbent(record.trials, objective)
    if trial is None:
        return None
    value, epoch = get_best_value(trial, objective), get_best_epoch(trial, objective)
    beside, others = describe_metrics(trial, objective, record.about.get("units", {}))
    says = f"Trial {trial.number} reached {objective.metric} {format_value(value)}{beside} "
    says += f"in epoch {epoch} of {max(intermediate_values(trial))}. "
    if ties := find_ties(record.trials, trial, objective):
        says += f"The same value was reached in {format_trials(ties)}. "
    says += _describe_gain(record, trial, defaults) + _describe_unfinished_trials(record, trial)
    says = "\n".join([says, *others])
    table = _build_table(trial, None if defaults is None or defaults.number == trial.number else defaults)
    notes = _format_notes(trial, get_reports(trial)[epoch].get("checkpoint"))
    title = "The best trial of the search" if record.confirming_runs else "The best trial"
    return Section(title, says, table=table, notes=notes)


def format_gain(record: SearchRecord) -> tuple[str, str] | None:
    """Return the best trial's gain over the defaults as a label and a value, or None if it is unknown."""
    objective, defaults = record.objective, record.default_trial
    trial = find_incumbent(record.trials, objective)
    if trial is None or defaults is None:
        return None
    if trial.number == defaults.number:
        return "gain over the defaults", "none"
    compared = compare_at_equal_epochs(trial, defaults, objective)
    if compared is None:
        return None
    epoch, value, before = compared
    label = f"gain over the defaults by epoch {epoch}, one trial each"
    if not objective.is_better(value, before):
        return label, "none"
    return label, ("+" if value > before else "-") + format_change(value, before)


def _describe_unfinished_trials(record: SearchRecord, best: FrozenTrial) -> str:
    """Return a sentence if an unfinished trial is better than `best`, or if no trial has ended."""
    if get_outcome(best) not in WITH_RESULT:
        return " No trial has ended yet: this is the best so far."
    unfinished = [trial for trial in record.trials if get_outcome(trial) == "interrupted"]
    ahead = find_incumbent(unfinished, record.objective)
    if ahead is None:
        return ""
    value = get_best_value(ahead, record.objective)
    if not record.objective.is_better(value, get_best_value(best, record.objective)):
        return ""
    epoch = get_best_epoch(ahead, record.objective)
    return f" Trial {ahead.number}, which has not ended, reported a better one: {format_value(value)} in epoch {epoch}."


def _describe_gain(record: SearchRecord, trial: FrozenTrial, defaults: FrozenTrial | None) -> str:
    """Return a comparison of the best trial with the defaults by the last epoch that both reached."""
    if defaults is None:
        return (
            "The task's defaults were not tried, for example because one lies outside of the search space: "
            "the gain over them is unknown."
        )
    if defaults.number == trial.number:
        return "These are the task's defaults: no other trial reported a better value."
    ended, objective = _describe_end(defaults), record.objective
    compared = compare_at_equal_epochs(trial, defaults, objective)
    if compared is None:
        return f"The task's defaults (trial {defaults.number}) cannot be compared with it: their trial {ended}."
    epoch, value, before = compared
    difference = f"{format_change(value, before)} {'better' if objective.is_better(value, before) else 'worse'}"
    text = f"By epoch {epoch}, the last that both reached, it had {format_value(value)} and the task's defaults "
    text += f"(trial {defaults.number}) had {format_value(before)}: "
    text += f"{'no difference' if value == before else difference}. The trial of the defaults {ended}. "
    number = pluralize(len(select_comparable_trials(record.trials)), "trial")
    return f"{text}It is the best of {number} and the defaults are one trial, so part of this may be chance."


def _describe_end(trial: FrozenTrial) -> str:
    """Return a part of a sentence, such as "was stopped after epoch 3 (not among the best at epoch 3)"."""
    outcome, reason = get_outcome(trial), trial.user_attrs.get("reason", "")
    epochs = max(intermediate_values(trial), default=0)
    text = {
        "completed": f"ran to its end, epoch {epochs}",
        "pruned": f"was stopped after epoch {epochs}",
        "interrupted": f"had not ended, after epoch {epochs}" if epochs else "had not ended",
    }.get(outcome, outcome)
    return text + (f" ({reason})" if reason else "")


def _build_table(trial: FrozenTrial, defaults: FrozenTrial | None) -> list[list[str]]:
    """Return the searched parameters of the best trial next to the defaults."""
    rows = [["parameter", "best", *(["defaults"] if defaults else []), "searched in"]]
    for name, value in trial.params.items():
        other = [format_value(defaults.params.get(name, "-"))] if defaults else []
        rows.append([name, format_value(value), *other, str(Parameter(name, trial.distributions[name], {}))])
    return rows


def _format_notes(trial: FrozenTrial, checkpoint: str | None) -> str:
    """Return the fixed parameters, and the path of the checkpoint."""
    config = get_flat_config(trial).items()
    fixed = [f"{name} {_format_fixed_value(value)}" for name, value in config if name not in trial.params]
    text = [f"Not searched: {', '.join(fixed)}."] if fixed else []
    return "\n".join([*text, f"The checkpoint of that report: {checkpoint}"] if checkpoint else text)


def _format_fixed_value(value: Any) -> str:
    """Return a value as text. Format a float without rounding."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
