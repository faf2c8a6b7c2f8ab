"""The best trial, and what it gained over the task's defaults."""

from typing import Any

from optuna.trial import FrozenTrial

from search.analysis.baseline import describe_end, get_best_value_until, get_flat_config
from search.analysis.incumbent import incumbent, incumbent_is_final
from search.config.objectives import Mode, get_sign
from search.config.search_space import Parameter
from search.formatting import format_change, format_value
from search.reporting.html.section import Section
from search.study.record import SearchRecord
from search.study.trial import get_best_epoch, get_best_value, get_outcome, get_reports, intermediate_values


def build(searched: SearchRecord) -> Section | None:
    """The best trial's parameters beside the defaults; None if there is no best one."""
    trial, mode = incumbent(searched), searched.mode
    if trial is None:
        return None
    defaults = searched.default_trial
    value, epoch, epochs = get_best_value(trial, mode), get_best_epoch(trial, mode), max(intermediate_values(trial))
    says = f"Trial {trial.number} reached {searched.objective} {format_value(value)} in epoch {epoch} of {epochs}."
    says += f" {_describe_gain(searched, trial, defaults)}{_describe_unfinished_trials(searched, value)}"
    table = _build_table(trial, None if defaults is None or defaults.number == trial.number else defaults)
    notes = _format_notes(trial, get_reports(trial)[epoch].get("checkpoint"))
    return Section("The best trial", says, table=table, notes=notes)


def format_gain(searched: SearchRecord) -> str:
    """What the best trial gained over the defaults, in a word or two; empty if that is not known."""
    trial, defaults = incumbent(searched), searched.default_trial
    if trial is None or defaults is None or not intermediate_values(defaults):
        return ""
    value, before = get_best_value(trial, searched.mode), get_best_value(defaults, searched.mode)
    if get_sign(searched.mode) * (value - before) >= 0:
        return "none"
    return ("+" if value > before else "-") + format_change(value, before)


def _describe_unfinished_trials(searched: SearchRecord, value: float) -> str:
    """What is to be known of trials that have not ended."""
    if not incumbent_is_final(searched):
        return " No trial has ended yet: this is the best so far."
    mode, waiting = searched.mode, [trial for trial in searched.trials if get_outcome(trial) == "interrupted"]
    better = [
        trial
        for trial in waiting
        if intermediate_values(trial) and get_sign(mode) * (get_best_value(trial, mode) - value) < 0
    ]
    if not better:
        return ""
    ahead = min(better, key=lambda trial: get_sign(mode) * get_best_value(trial, mode))
    return (
        f" Trial {ahead.number}, which has not ended, is ahead of it with {format_value(get_best_value(ahead, mode))}."
    )


def _describe_gain(searched: SearchRecord, trial: FrozenTrial, defaults: FrozenTrial | None) -> str:
    """In a sentence; where the defaults were stopped earlier, also what the best trial had by then."""
    if defaults is None:
        return (
            "The task's own defaults were not tried, as where one lies outside of what is searched: "
            "what it gained over them is not known."
        )
    mode, number, ended = searched.mode, defaults.number, describe_end(defaults)
    if number == trial.number:
        return "These are the task's defaults: no other trial was better."
    if not intermediate_values(defaults):
        return f"The task's defaults (trial {number}) have nothing to compare it with: the trial {ended}."
    value, before = get_best_value(trial, mode), get_best_value(defaults, mode)
    told = f"The task's defaults (trial {number}) reached {format_value(before)}: "
    if get_sign(mode) * (value - before) >= 0:  # as when they reported better, and diverged then
        return f"{told}no worse, but that trial {ended}."
    told += f"the search gained {format_change(value, before)}."
    epoch = max(intermediate_values(defaults))
    then = get_best_value_until(trial, epoch, mode)
    if epoch >= max(intermediate_values(trial)) or then is None:
        return told
    difference = _format_comparison(then, before, mode)
    return f"{told} That trial {ended}; by then, the best one had {format_value(then)}, {difference}."


def _format_comparison(value: float, before: float, mode: Mode) -> str:
    if value == before:
        return "just as much"
    return f"{format_change(value, before)} {'better' if get_sign(mode) * (value - before) < 0 else 'worse'}"


def _build_table(trial: FrozenTrial, defaults: FrozenTrial | None) -> list[list[str]]:
    """What was searched, of the best trial beside the defaults."""
    rows = [["parameter", "best", *(["defaults"] if defaults else []), "searched in"]]
    for name, value in trial.params.items():
        other = [format_value(defaults.params.get(name, "-"))] if defaults else []
        rows.append([name, format_value(value), *other, str(Parameter(name, trial.distributions[name], {}))])
    return rows


def _format_notes(trial: FrozenTrial, checkpoint: str | None) -> str:
    """What all trials had alike, and where the weights are."""
    fixed = [
        f"{name} {_format_fixed_value(value)}"
        for name, value in get_flat_config(trial).items()
        if name not in trial.params
    ]
    told = [f"Not searched: {', '.join(fixed)}."] if fixed else []
    return "\n".join([*told, f"The checkpoint of that report: {checkpoint}"] if checkpoint else told)


def _format_fixed_value(value: Any) -> str:
    """A number that somebody has chosen, with all of its digits."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
