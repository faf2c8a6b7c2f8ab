"""Play studies without training: ask for trials, and tell what came of them."""

from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable

SAMPLERS = ["mixture", "tpe", "gp", "cmaes", "qmc", "nsga2", "random"]


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


SPACE = resolve_space(Config, {}, {})


def play_trials(study, space, trials, tell, parallel=1):
    """Ask for `trials`, so many at a time, and call `tell(number, values)` for each; return their values."""
    asked, running = [], []
    for _ in range(trials):
        number, values = study.ask(space)
        study.live.add(number)
        asked.append(values)
        running.append((number, values))
        if len(running) == parallel:
            number, values = running.pop(0)
            tell(number, values)
            study.live.discard(number)
    return asked


def complete(study, number, value):
    """Report `value` for the first epoch, and complete the trial."""
    study.report(number, 1, value, {"metrics": {"val/loss": value}, "checkpoint": None})
    study.end(number, "completed")
