"""Checks before the start of Ray whether this machine can run the search."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from optuna.distributions import CategoricalDistribution

from searchlight.search.config import SearchConfig
from searchlight.search.config.search_space import Parameter, Space
from searchlight.search.errors import UsageError
from searchlight.trainables.precision import AUTO, find_supported_precisions
from searchlight.trainables.preflight.modes import emulation_factor, is_emulated
from searchlight.trainables.task import TaskConfig

TOLD_FACTOR = 2.0  # smaller factors may be noise of other processes


def count_available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_machine(config: SearchConfig, space: Space) -> None:
    """Raise a UsageError if this machine has too few CPUs or GPUs for the search, or lacks a precision."""
    cpus, gpus = count_available_cpus(), torch.cuda.device_count()
    problems = []
    for each, have, unit in ((config.cpus_per_worker, cpus, "CPUs"), (config.gpus_per_worker or 0.0, gpus, "GPUs")):
        wanted = config.workers * each
        if wanted > have:
            problems.append(
                f"--workers times --{unit.lower()}-per-worker must be at most the {have} {unit} of this machine, "
                f"but got {wanted:g}."
            )
        elif wanted and config.concurrency and config.concurrency * wanted > have:
            problems.append(
                f"--concurrency must be at most {int(have // wanted)} with the {have} {unit} of this machine, "
                f"but got {config.concurrency}."
            )
    if config.resources:
        problems.append(
            f"--resource must be one that this machine has, but it has CPUs and GPUs alone, and got "
            f"{', '.join(sorted(config.resources))}. Custom resources are declared by the nodes of a cluster."
        )
    device = _get_device(config)
    able = [mode.value for mode in find_supported_precisions(device)]
    searched = next((p.distribution for p in space.parameters if p.name == "precision"), None)
    fixed = space.build_config({})
    if isinstance(fixed, TaskConfig):  # a function may give `precision` another meaning
        wanted_modes = searched.choices if isinstance(searched, CategoricalDistribution) else [fixed.precision]
        lacking = [str(mode) for mode in wanted_modes if mode not in [*able, AUTO]]
    else:
        lacking = []
    if lacking:
        problems.append(
            f"precision must be one that {device} supports, but got {', '.join(lacking)}. "
            f"Use --search precision={','.join(able)} or --set precision={able[0]}."
        )
    if problems:
        raise UsageError(*problems)


def list_optional_precisions(config: SearchConfig, space: Space) -> list[str]:
    """Return the precisions of `space` that are neither the task's default nor named by the user."""
    parameter = _find_precision(space)
    if parameter is None or "precision" in config.search or any("precision" in point for point in config.try_):
        return []
    assert isinstance(parameter.distribution, CategoricalDistribution)
    default = space.get_defaults().get("precision")
    return [str(mode) for mode in parameter.distribution.choices if mode != default]


def leave_out_again(space: Space, known: Mapping[str, str]) -> tuple[Space, list[str]]:
    """Return `space` without the precisions that an earlier driver left out, as far as others remain.

    Args:
        known: These precisions, each with the line that says why.

    Returns:
        The space, and the lines of the precisions that are left out now.
    """
    parameter = _find_precision(space)
    if parameter is None:
        return space, []
    assert isinstance(parameter.distribution, CategoricalDistribution)
    modes = [str(mode) for mode in parameter.distribution.choices if mode in known]
    if not modes or len(modes) == len(parameter.distribution.choices):
        return space, []
    return leave_out(space, modes, "", 1.0)[0], [*dict.fromkeys(known[mode] for mode in modes)]


def _find_precision(space: Space) -> Parameter | None:
    """Return the parameter that chooses the precision of a trial, or None if it is fixed."""
    if not issubclass(space.config_class, TaskConfig):  # a function may give `precision` another meaning
        return None
    return next((p for p in space.parameters if p.name == "precision"), None)


def leave_out_emulated(config: SearchConfig, space: Space) -> tuple[Space, dict[str, str]]:
    """Return `space` without precisions that this machine only emulates, and these with a line that says why.

    Keep precisions that the user named, and the task's default. The nodes of a cluster that the search joins may have
    other processors, so that their check decides.
    """
    device = _get_device(config)
    optional = [] if uses_existing_cluster() else list_optional_precisions(config, space)
    emulated = [m for m in optional if m in find_supported_precisions(device) and is_emulated(device, m)]
    if not emulated:
        return space, {}
    space, line = leave_out(space, emulated, "this CPU emulates it", emulation_factor(device) or 1.0)
    return space, dict.fromkeys(emulated, line)


def leave_out(space: Space, modes: Sequence[str], reason: str, factor: float) -> tuple[Space, str]:
    """Return `space` without the precisions `modes`, and a line with the `reason`.

    Args:
        factor: The time of a matrix product, as a multiple of its time in fp32.
    """
    parameter = _find_precision(space)
    assert parameter is not None
    assert isinstance(parameter.distribution, CategoricalDistribution)
    choices = list(parameter.distribution.choices)
    kept = [mode for mode in choices if mode not in modes]
    slow = f", and a matrix product takes {factor:.0f} times as long as in fp32" if factor >= TOLD_FACTOR else ""
    line = (
        f"{', '.join(modes)} is left out of the search: {reason}{slow}. "
        f"A new search with --search precision={','.join(map(str, choices))} keeps it"
    )
    if len(kept) == 1:
        parameters = tuple(p for p in space.parameters if p is not parameter)
        return Space(space.config_class, parameters, {**space.fixed, "precision": kept[0]}), line
    narrowed = replace(parameter, distribution=CategoricalDistribution(kept))
    return replace(space, parameters=tuple(narrowed if p is parameter else p for p in space.parameters)), line


def _get_device(config: SearchConfig) -> torch.device:
    """Return the device of a trial on this machine."""
    return torch.device("cuda" if torch.cuda.device_count() and config.gpus_per_worker != 0 else "cpu")


def uses_existing_cluster() -> bool:
    """Return whether the search joins a running Ray. RAY_ADDRESS is set, e.g. in a submitted job."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")
