"""The best trial, and what it gained over the task's defaults."""

from typing import Any

from optuna.trial import FrozenTrial

from search.analysis.baseline import config_of, how_it_ended, reached_by
from search.analysis.incumbent import is_settled, leading
from search.config.objectives import Mode, sign
from search.config.search_space import Parameter
from search.formatting import change, short
from search.reporting.html.section import Section
from search.study.record import Searched
from search.study.trial import best_epoch, best_value, curve_of, outcome_of, reports_of


def section(searched: Searched) -> Section | None:
    """The best trial's parameters beside the defaults; None if there is no best one."""
    trial, mode = leading(searched), searched.mode
    if trial is None:
        return None
    defaults = searched.defaults
    value, epoch, epochs = best_value(trial, mode), best_epoch(trial, mode), max(curve_of(trial))
    says = f"Trial {trial.number} reached {searched.objective} {short(value)} in epoch {epoch} of {epochs}."
    says += f" {_gain(searched, trial, defaults)}{_ahead(searched, value)}"
    table = _table(trial, None if defaults is None or defaults.number == trial.number else defaults)
    notes = _notes(trial, reports_of(trial)[epoch].get("checkpoint"))
    return Section("The best trial", says, table=table, notes=notes)


def gain_of(searched: Searched) -> str:
    """What the best trial gained over the defaults, in a word or two; empty if that is not known."""
    trial, defaults = leading(searched), searched.defaults
    if trial is None or defaults is None or not curve_of(defaults):
        return ""
    value, before = best_value(trial, searched.mode), best_value(defaults, searched.mode)
    if sign(searched.mode) * (value - before) >= 0:
        return "none"
    return ("+" if value > before else "-") + change(value, before)


def _ahead(searched: Searched, value: float) -> str:
    """What is to be known of trials that have not ended."""
    if not is_settled(searched):
        return " No trial has ended yet: this is the best so far."
    mode, waiting = searched.mode, [trial for trial in searched.trials if outcome_of(trial) == "interrupted"]
    better = [trial for trial in waiting if curve_of(trial) and sign(mode) * (best_value(trial, mode) - value) < 0]
    if not better:
        return ""
    ahead = min(better, key=lambda trial: sign(mode) * best_value(trial, mode))
    return f" Trial {ahead.number}, which has not ended, is ahead of it with {short(best_value(ahead, mode))}."


def _gain(searched: Searched, trial: FrozenTrial, defaults: FrozenTrial | None) -> str:
    """In a sentence; where the defaults were stopped earlier, also what the best trial had by then."""
    if defaults is None:
        return (
            "The task's own defaults were not tried, as where one lies outside of what is searched: "
            "what it gained over them is not known."
        )
    mode, number, ended = searched.mode, defaults.number, how_it_ended(defaults)
    if number == trial.number:
        return "These are the task's defaults: no other trial was better."
    if not curve_of(defaults):
        return f"The task's defaults (trial {number}) have nothing to compare it with: the trial {ended}."
    value, before = best_value(trial, mode), best_value(defaults, mode)
    told = f"The task's defaults (trial {number}) reached {short(before)}: "
    if sign(mode) * (value - before) >= 0:  # as when they reported better, and diverged then
        return f"{told}no worse, but that trial {ended}."
    told += f"the search gained {change(value, before)}."
    epoch = max(curve_of(defaults))
    then = reached_by(trial, epoch, mode)
    if epoch >= max(curve_of(trial)) or then is None:
        return told
    return f"{told} That trial {ended}; by then, the best one had {short(then)}, {_compared(then, before, mode)}."


def _compared(value: float, before: float, mode: Mode) -> str:
    if value == before:
        return "just as much"
    return f"{change(value, before)} {'better' if sign(mode) * (value - before) < 0 else 'worse'}"


def _table(trial: FrozenTrial, defaults: FrozenTrial | None) -> list[list[str]]:
    """What was searched, of the best trial beside the defaults."""
    rows = [["parameter", "best", *(["defaults"] if defaults else []), "searched in"]]
    for name, value in trial.params.items():
        other = [short(defaults.params.get(name, "-"))] if defaults else []
        rows.append([name, short(value), *other, str(Parameter(name, trial.distributions[name], {}))])
    return rows


def _notes(trial: FrozenTrial, checkpoint: str | None) -> str:
    """What all trials had alike, and where the weights are."""
    fixed = [f"{name} {_whole(value)}" for name, value in config_of(trial).items() if name not in trial.params]
    told = [f"Not searched: {', '.join(fixed)}."] if fixed else []
    return "\n".join([*told, f"The checkpoint of that report: {checkpoint}"] if checkpoint else told)


def _whole(value: Any) -> str:
    """A number that somebody has chosen, with all of its digits."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
