"""Failed, diverged and infeasible trials, by reason."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import group_by_reason
from searchlight.search.analysis.divergence import find_divergence
from searchlight.search.analysis.infeasibility import describe_nearest, find_violated_constraints, list_split_trials
from searchlight.search.formatting import format_numbers, format_percent, join_words, pluralize
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import WORSE, get_outcome

BROKEN = ("failed", *WORSE)
UNKNOWN = "no reason is known"


def build(record: SearchRecord) -> Section | None:
    """Return the reasons of failures, divergence and infeasibility, the most frequent first, or None without any."""
    broken = [trial for trial in record.trials if get_outcome(trial) in BROKEN]
    if not broken and not list_split_trials(record.trials):
        return None
    rows = [["trials", "outcome", "reason", "which"]]
    for alike in group_by_reason(broken):
        reason = alike[0].user_attrs.get("reason") or UNKNOWN
        others = {trial.user_attrs.get("reason") for trial in alike} - {reason}
        text = reason if not others or reason == UNKNOWN else f"{reason} (and {len(others)} that differ in numbers)"
        rows.append([str(len(alike)), get_outcome(alike[0]), text, format_numbers([trial.number for trial in alike])])
    outcomes = [outcome for outcome in BROKEN if any(get_outcome(trial) == outcome for trial in broken)]
    title = f"{join_words(outcomes).capitalize()} trials" if broken else "Out of memory"
    return Section(title, _summary_text(record, broken), table=rows if broken else ())


def _summary_text(record: SearchRecord, broken: Sequence[FrozenTrial]) -> str:
    """Return the number of these trials, and where they diverged or were infeasible."""
    counts = [f"{sum(get_outcome(trial) == outcome for trial in broken)} {outcome}" for outcome in BROKEN]
    present = [count for count in counts if not count.startswith("0 ")]
    share = format_percent(len(broken) / len(record.trials))
    lines = [f"Of {pluralize(len(record.trials), 'trial')} {join_words(present)}: {share}."] if broken else []
    lines += [f"Diverged: {divergence}." for divergence in find_divergence(record.trials)]
    lines += [f"Infeasible: {found}." for found in find_violated_constraints(record.trials, record.objective)]
    if nearest := describe_nearest(record.trials, record.objective):
        lines.append(f"{nearest[:1].upper()}{nearest[1:]}.")
    if split := list_split_trials(record.trials):
        lines.append(f"Out of memory, then smaller micro-batches for the same updates: {'; '.join(split)}.")
    if any(get_outcome(trial) == "failed" or "infeasibility" in trial.user_attrs for trial in broken):
        lines.append("The tracebacks of those that failed are in errors/.")
    return "\n".join(lines)
