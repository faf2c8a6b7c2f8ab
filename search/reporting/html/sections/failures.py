"""What failed and what diverged, by reason."""

import re
from collections import defaultdict
from collections.abc import Sequence

from optuna.trial import FrozenTrial

from search.analysis.divergence import find_divergence
from search.formatting import format_numbers, format_percent, join_words, pluralize
from search.reporting.html.template import Section
from search.study.record import SearchRecord
from search.study.trial import get_outcome

NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?", re.IGNORECASE)
UNKNOWN = "no reason is known"


def build(searched: SearchRecord) -> Section | None:
    """The reasons that trials failed or diverged for, most frequent first; None if none did."""
    broken = [trial for trial in searched.trials if get_outcome(trial) in ("failed", "diverged")]
    if not broken:
        return None
    rows = [["trials", "outcome", "reason", "which"]]
    for alike in _group_by_reason(broken):
        reason = alike[0].user_attrs.get("reason") or UNKNOWN
        others = {trial.user_attrs.get("reason") for trial in alike} - {reason}
        told = reason if not others or reason == UNKNOWN else f"{reason} (and {len(others)} that differ in numbers)"
        rows.append([str(len(alike)), get_outcome(alike[0]), told, format_numbers([trial.number for trial in alike])])
    return Section("Failures", _summary_text(searched, broken), table=rows)


def _group_by_reason(trials: Sequence[FrozenTrial]) -> list[list[FrozenTrial]]:
    """Trials whose reasons differ at most in their numbers, together."""
    groups: defaultdict[tuple[str, str], list[FrozenTrial]] = defaultdict(list)
    for trial in trials:
        groups[get_outcome(trial), NUMBER.sub("#", trial.user_attrs.get("reason", ""))].append(trial)
    return sorted(groups.values(), key=len, reverse=True)


def _summary_text(searched: SearchRecord, broken: Sequence[FrozenTrial]) -> str:
    """How many, and where they diverged."""
    counts = [
        f"{sum(get_outcome(trial) == outcome for trial in broken)} {outcome}" for outcome in ("failed", "diverged")
    ]
    told = [count for count in counts if not count.startswith("0 ")]
    share = format_percent(len(broken) / len(searched.trials))
    lines = [f"Of {pluralize(len(searched.trials), 'trial')} {join_words(told)}: {share}."]
    lines += [f"Diverged: {divergence}." for divergence in find_divergence(searched.trials)]
    if any(get_outcome(trial) == "failed" for trial in broken):
        lines.append("The tracebacks of those that failed are in errors/.")
    return "\n".join(lines)
