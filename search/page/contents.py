"""What the page of a search holds, most important first."""

from search.elapsed import elapsed
from search.page.judged import leading
from search.page.layout import page
from search.page.sections import best, curves, failures, front, gangs, importances, precisions, progress, trials
from search.results import count_outcomes
from search.searched import Searched
from search.shown import clock, short
from search.trials import best_value
from search.words import counted, listed

SECTIONS = (
    best.section,
    front.section,
    progress.section,
    curves.section,
    importances.section,
    precisions.section,
    failures.section,
    gangs.section,
    trials.section,
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
    found, gain = leading(searched), best.gain_of(searched)
    facts = [(f"best {searched.objective}", short(best_value(found, searched.mode)) if found else "none")]
    facts += [("gain over the defaults", gain)] if gain else []
    facts.append(("trials", str(len(searched.trials))))
    facts.append(("ran for", clock(elapsed(searched.trials).total)))
    return facts
