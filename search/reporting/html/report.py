"""What the page of a search holds, most important first."""

import shlex
from collections.abc import Callable

from search.analysis.best_trials import count_outcomes
from search.analysis.incumbent import leading
from search.analysis.timeline import elapsed
from search.formatting import clock, counted, listed, report_again, short
from search.reporting.html.sections import (
    best_trial,
    failures,
    learning_curves,
    optimization_history,
    param_importances,
    pareto_front,
    precision,
    timeline,
    trial_table,
)
from search.reporting.html.template import page
from search.storage.atomic_file import write_whole
from search.study.record import Searched
from search.study.trial import best_value
from trainables.filesystem.paths import Place

SECTIONS = (
    best_trial.section,
    pareto_front.section,
    optimization_history.section,
    learning_curves.section,
    param_importances.section,
    precision.section,
    failures.section,
    timeline.section,
    trial_table.section,
)


def html_of(searched: Searched, command: str = "") -> str:
    """The page of `searched`.

    Args:
        command: What runs it again.
    """
    sections = [section for make in SECTIONS if (section := make(searched)) is not None]
    return page(searched.name, _subtitle(searched), sections, _facts(searched), command)


def _subtitle(searched: Searched) -> str:
    told = [str(searched.about["config"]["task"])] if "config" in searched.about else []
    began = min((trial.datetime_start for trial in searched.trials if trial.datetime_start), default=None)
    told += [f"begun {began:%-d %B %Y, %H:%M}"] if began else []
    outcomes = [f"{count} {outcome}" for outcome, count in count_outcomes(searched.trials).items()]
    told.append(f"{counted(len(searched.trials), 'trial')}{': ' if outcomes else ''}{listed(outcomes)}")
    return " · ".join(told)


def _facts(searched: Searched) -> list[tuple[str, str]]:
    found, gain = leading(searched), best_trial.gain_of(searched)
    facts = [(f"best {searched.objective}", short(best_value(found, searched.mode)) if found else "none")]
    facts += [("gain over the defaults", gain)] if gain else []
    facts.append(("trials", str(len(searched.trials))))
    facts.append(("ran for", clock(elapsed(searched.trials).total)))
    return facts


def write_page(searched: Searched, path: Place) -> None:
    """Write the page of a search to `path` in its folder, all of it or nothing.

    Raises:
        OSError: It cannot be written.
    """
    command = f"python search/run.py --config {shlex.quote(str(path.with_name('search.yaml')))}"
    write_whole(path, html_of(searched, command))


def save_page(searched: Searched, path: Place, say: Callable[[str], None]) -> bool:
    """The same; that it cannot be written is told in a line, and keeps nobody from going on. Whether it was written."""
    try:
        write_page(searched, path)
    except Exception as error:  # a full disk, or what nobody thought of: the search is worth more than its page
        again = f"{report_again(path.parent)} writes it again"
        say(f"{path} cannot be written: {type(error).__name__}: {error}; {again}")
        return False
    return True
