"""Contradictions between options of two packages. Each package finds those of its own."""

from collections.abc import Iterator

from searchlight.search.config.search_config import SearchConfig
from searchlight.search.formatting import join_words
from searchlight.search.samplers.factory import SAMPLERS
from searchlight.search.space.function_config import check_parameter_names


def find_contradictions(config: SearchConfig) -> list[str]:
    """Return a message for each contradiction between options of a search."""
    checks = (_check_once, _check_confirm, _check_scheduler, _check_sampler)
    return [*config.find_problems(), *(message for check in checks for message in check(config))]


def _check_once(config: SearchConfig) -> Iterator[str]:
    if not config.once:
        return
    given = {
        "--trials and --search": config.search or config.trials not in (1, SearchConfig.model_fields["trials"].default),
        "--try": config.try_,
        "--warm-start": config.warm_start,
        "--patience": config.patience,
    }
    for names in (names for names, is_given in given.items() if is_given):
        yield f"--once must come without {names}: it is one run with fixed parameters."


def _check_confirm(config: SearchConfig) -> Iterator[str]:
    runs = config.confirm
    if runs and config.once:
        yield f"--confirm must be 0 with --once, but got {runs}: there is one config. Leave it out."
    elif runs and config.trials < 2:
        yield f"--trials must be at least 2 with --confirm {runs}, but got {config.trials}: it compares configs."
    if runs and config.scheduler_class.makes_copies:
        yield (
            f"--confirm must be 0 with --scheduler {config.scheduler}, but got {runs}: a member's parameters change "
            "while it trains, and no config trains the like again. Leave it out."
        )


def _check_scheduler(config: SearchConfig) -> Iterator[str]:
    if not config.scheduler_class.makes_copies:
        return
    if config.trials < 2:
        yield f"--trials must be at least 2 with --scheduler {config.scheduler}, but got {config.trials}."
    elif "trials" in config.model_fields_set and config.trials < (config.population or 0):
        yield (
            f"--population must be at most --trials, {config.trials}, but got {config.population}. "
            "Trials beyond it are the copies."
        )


def _check_sampler(config: SearchConfig) -> Iterator[str]:
    count = len(config.objective)
    if count > 1 and not SAMPLERS[config.sampler].takes_several_objectives:
        able = join_words([name for name, kind in SAMPLERS.items() if kind.takes_several_objectives], "or")
        yield f"--sampler must be {able} with {count} objectives, but got {config.sampler}."


def check_function_options(config: SearchConfig) -> list[str]:
    """Return a line for each problem with the options of a search over a function."""
    problems = []
    if config.fidelity == "samples":
        problems.append(
            "--fidelity must be epochs or gpu-seconds with a function, but got samples: a function does not say how "
            "many it takes."
        )
    if config.scheduler != "none" and config.fidelity == "epochs" and "epochs" not in {*config.set, *config.search}:
        problems.append(
            f"--set epochs=N must be given with --scheduler {config.scheduler}: how many reports a trial makes. "
            "With --scheduler none it ends when the function returns."
        )
    if config.makes_model:
        problems.append(
            f"--register must come with a task class, but {config.task.rpartition(':')[2]} is a function, which does "
            "not say what it predicts. Log its checkpoint with mlflow yourself, or make it a task: docs/tasks.md."
        )
    flags = dict.fromkeys(config.search, "--search") | dict.fromkeys(config.set, "--set")
    return problems + check_parameter_names(flags)
