"""The HTML report of a search, with the most important section first."""

import shlex
from collections.abc import Callable

from searchlight.search.analysis.best_trials import count_outcomes, find_incumbent
from searchlight.search.analysis.confirmation import describe_config
from searchlight.search.analysis.confirmed_best import confirm, get_confirmed_config
from searchlight.search.analysis.ranking import trial_rows
from searchlight.search.analysis.timeline import running_time
from searchlight.search.formatting import (
    format_command,
    format_duration,
    format_interval,
    format_value,
    join_words,
    pluralize,
    report_command,
)
from searchlight.search.reporting.html.sections import (
    best_trial,
    commands,
    confirmation,
    failures,
    learning_curves,
    optimization_history,
    param_importances,
    pareto_front,
    precision,
    preflight,
    timeline,
)
from searchlight.search.reporting.html.template import Section, render_page
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_best_value
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath

LISTED = 100  # trials in the table of all trials


def build_trial_table(record: SearchRecord) -> Section | None:
    """Return the table of the trials, the best first, or None if no trial began."""
    if not record.trials:
        return None
    rows = trial_rows(record.trials, record.objectives)
    left = len(record.trials) - LISTED
    notes = f"{pluralize(left, 'trial')} more in trials.parquet, which contains all reports." if left > 0 else ""
    return Section(
        "All trials",
        "The best first, by the best report of each trial at any epoch.",
        table=rows[: LISTED + 1],
        notes=notes,
    )


SECTIONS = (
    confirmation.build,
    best_trial.build,
    pareto_front.build,
    optimization_history.build,
    learning_curves.build,
    param_importances.build,
    precision.build,
    failures.build,
    preflight.build,
    commands.build,
    timeline.build,
    build_trial_table,
)


def render_report(record: SearchRecord, command: str = "", refresh_s: int = 0, controls: str = "") -> str:
    """Return the HTML report of `record`.

    Args:
        command: The command that starts the search again, or a line about a search that runs.
        refresh_s: How often the page loads itself again, for a search that runs. Its section of importances, which
            takes longer than all others, is left out then.
        controls: HTML before the sections.
    """
    makers = [make for make in SECTIONS if not (refresh_s and make is param_importances.build)]
    sections = [section for make in makers if (section := make(record)) is not None]
    facts = _collect_facts(record)
    return render_page(record.name, _format_subtitle(record), sections, facts, command, refresh_s, controls)


def _format_subtitle(record: SearchRecord) -> str:
    subtitle = [str(record.about["config"]["task"])] if "config" in record.about else []
    began = min((trial.datetime_start for trial in record.trials if trial.datetime_start), default=None)
    subtitle += [f"begun {began:%-d %B %Y, %H:%M}"] if began else []
    outcomes = [f"{count} {outcome}" for outcome, count in count_outcomes(record.trials).items()]
    subtitle.append(f"{pluralize(len(record.trials), 'trial')}{': ' if outcomes else ''}{join_words(outcomes)}")
    return " · ".join(subtitle)


def _collect_facts(record: SearchRecord) -> list[tuple[str, str]]:
    objective, gain = record.objective, best_trial.format_gain(record)
    best = find_incumbent(record.trials, objective)
    facts = [(f"best {objective.metric}", format_value(get_best_value(best, objective)) if best else "none")]
    if len(confirmed := confirm(record)) == 1:  # preferred to the gain of a single trial
        config = get_confirmed_config(confirmed[0])
        label = f"confirmed {objective.metric} of {describe_config(config.trial)} (90 % interval)"
        facts.insert(0, (label, f"{format_value(config.mean)} ({format_interval(*config.interval)})"))
        gain = None
    facts += [gain] if gain else []
    facts.append(("trials", str(len(record.trials))))
    facts.append(("ran for", format_duration(running_time(record).total)))
    return facts


def write_report(record: SearchRecord, path: StoragePath) -> None:
    """Write the report of a search to `path` in its folder, atomically.

    Raises:
        OSError: It cannot be written.
    """
    command = f"{format_command('run')} --config {shlex.quote(str(path.with_name('search.yaml')))}"
    write_atomic(path, render_report(record, command))


def try_write_report(record: SearchRecord, path: StoragePath, say: Callable[[str], None]) -> bool:
    """Write the report and return True. On an error, show a line and return False."""
    try:
        write_report(record, path)
    except Exception as error:  # any error: the search is more important than its report
        again = f"{report_command(path.parent)} writes it again"
        say(f"{path} cannot be written: {type(error).__name__}: {error}; {again}")
        return False
    return True
