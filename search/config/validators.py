"""Detection of contradictory options."""

from collections.abc import Iterator

from searchlight.search.config.search_config import SearchConfig
from searchlight.search.option import SMALLEST_AMOUNT
from searchlight.search.space.function_config import check_parameter_names
from searchlight.trainables.filesystem.paths import get_scheme, replaces_atomically

FEWEST_CONFIRMING_RUNS = 4


def find_contradictions(config: SearchConfig) -> list[str]:
    """Return a message for each contradiction between options of a search."""
    checks = (_check_name, _check_once, _check_confirm, _check_workers, _check_scheduler, _check_study)
    return [*config.find_problems(), *(message for check in checks for message in check(config))]


def _check_name(config: SearchConfig) -> Iterator[str]:
    if "name" in config.model_fields_set and not config.name:
        yield "--name must be letters, digits, '.', '_' or '-', but got ''. Leave it out for a name with date and time."


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
    if runs is not None and 0 < runs < FEWEST_CONFIRMING_RUNS:
        yield (
            f"--confirm must be 0 or at least {FEWEST_CONFIRMING_RUNS}, but got {runs}: a finalist and the defaults "
            "need two seeds each."
        )
    if runs and config.once:
        yield f"--confirm must be 0 with --once, but got {runs}: there is one config. Leave it out."
    elif runs and config.trials < 2:
        yield f"--trials must be at least 2 with --confirm {runs}, but got {config.trials}: it compares configs."
    if runs and config.scheduler_class.makes_copies:
        yield (
            f"--confirm must be 0 with --scheduler {config.scheduler}, but got {runs}: a member's parameters change "
            "while it trains, and no config trains the like again. Leave it out."
        )


def _check_workers(config: SearchConfig) -> Iterator[str]:
    gpus = config.gpus_per_worker or 0.0
    if 0 < gpus < SMALLEST_AMOUNT:
        yield f"--gpus-per-worker must be 0 or at least {SMALLEST_AMOUNT:g}, but got {gpus:g}."
    if gpus > 1 and gpus % 1:
        yield f"--gpus-per-worker must be whole above 1, but got {gpus:g}: a part of a GPU is one worker's."
    if 0 < gpus < 1 and config.workers > 1:
        yield (
            f"--gpus-per-worker must be whole with --workers {config.workers}, but got {gpus:g}: "
            "NCCL refuses two ranks on one GPU. Use --workers 1 or --gpus-per-worker 1."
        )
    for reserved in sorted({"CPU", "GPU", "memory"} & config.resources.keys()):
        yield f"--resource must name a custom resource, but got {reserved}. See --cpus-per-worker."


def _check_scheduler(config: SearchConfig) -> Iterator[str]:
    if not config.scheduler_class.makes_copies:
        pass
    elif config.trials < 2:
        yield f"--trials must be at least 2 with --scheduler {config.scheduler}, but got {config.trials}."
    elif "trials" in config.model_fields_set and config.trials < (config.population or 0):
        yield (
            f"--population must be at most --trials, {config.trials}, but got {config.population}. "
            "Trials beyond it are the copies."
        )
    if len(config.objective) > 1 and config.sampler == "cmaes":
        yield f"--sampler must be tpe, gp, nsga2, qmc or random with {len(config.objective)} objectives, but got cmaes."


def _check_study(config: SearchConfig) -> Iterator[str]:
    if not config.study and not replaces_atomically(config.storage):
        yield (
            f"--study must be a database with --storage {get_scheme(config.storage)}://, but got none: a file there is "
            "empty while it is written, and a driver that dies then would lose it. Use postgresql://host/database."
        )


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
