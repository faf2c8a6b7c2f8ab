"""Checks before the start of Ray whether this machine can run the search."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from optuna.distributions import CategoricalDistribution

from searchlight.search.errors import UsageError
from searchlight.search.execution.options import ResourceOptions
from searchlight.search.space.options import SpaceOptions
from searchlight.search.space.search_space import Space
from searchlight.trainables.gpu_driver import find_driver_problem
from searchlight.trainables.precision import AUTO, Precision, find_supported_precisions
from searchlight.trainables.task import TaskConfig

# Where Linux has the devices of GPUs: of NVIDIA, of its Tegra, of AMD, and of Windows beneath it.
GPUS = ("nvidia*", "nvgpu*", "nvhost*", "kfd", "dxg")


def count_available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus() -> int:
    """Return the number of GPUs that torch counts for this process. Where there can be none, torch is not imported."""
    may_have_some = sys.platform != "linux" or any(any(Path("/dev").glob(name)) for name in GPUS)
    if not may_have_some and "torch" not in sys.modules:
        return 0
    import torch

    return int(torch.cuda.device_count())


def check_machine(options: ResourceOptions, space: Space) -> None:
    """Raise a UsageError if this machine has too few CPUs or GPUs for the search, or lacks a precision."""
    cpus, gpus = count_available_cpus(), count_gpus() if options.gpus_per_worker else 0
    problems = []
    for each, have, unit in ((options.cpus_per_worker, cpus, "CPUs"), (options.gpus_per_worker or 0.0, gpus, "GPUs")):
        wanted = options.workers * each
        if wanted > have:
            problems.append(
                f"--workers times --{unit.lower()}-per-worker must be at most the {have} {unit} of this machine, "
                f"but got {wanted:g}."
            )
        elif wanted and options.concurrency and options.concurrency * wanted > have:
            problems.append(
                f"--concurrency must be at most {int(have // wanted)} with the {have} {unit} of this machine, "
                f"but got {options.concurrency}."
            )
    if options.resources:
        problems.append(
            f"--resource must be one that this machine has, but it has CPUs and GPUs alone, and got "
            f"{', '.join(sorted(options.resources))}. Custom resources are declared by the nodes of a cluster."
        )
    problems += _find_lacking_precisions(space, get_device_type(options))
    if problems:
        raise UsageError(*problems)


def _find_lacking_precisions(space: Space, device: str) -> list[str]:
    fixed = space.build_config({})
    if not isinstance(fixed, TaskConfig):  # a function may give `precision` another meaning
        return []
    import torch  # here, since the search of a program needs none

    able = [mode.value for mode in find_supported_precisions(torch.device(device))]
    searched = next((p.distribution for p in space.parameters if p.name == "precision"), None)
    wanted = searched.choices if isinstance(searched, CategoricalDistribution) else [fixed.precision]
    lacking = [str(mode) for mode in wanted if mode not in [*able, AUTO]]
    if not lacking:
        return []
    return [
        f"precision must be one that {device} supports, but got {', '.join(lacking)}. "
        f"Use --search precision={','.join(able)} or --set precision={able[0]}."
    ]


def check_driver(options: ResourceOptions) -> None:
    """Raise a UsageError if trials of torch would get a GPU that torch cannot use."""
    if options.gpus_per_worker != 0 and (problem := find_driver_problem()):
        raise UsageError(f"this machine must let torch use its GPUs: {problem} --gpus-per-worker 0 trains on CPUs.")


def leave_out_fp16(options: SpaceOptions, space: Space) -> tuple[Space, tuple[str, ...]]:
    """Return `space` for workers without a GPU, and a line for the user if it lost fp16.

    Few CPUs have fp16 arithmetic. The others emulate it, so that trials take many times as long as in fp32. Keep fp16
    if the user named precisions, or if it is the task's default.
    """
    parameter = next((p for p in space.parameters if p.name == "precision"), None)
    is_named = "precision" in options.search or any(point.get("precision") == Precision.FP16 for point in options.try_)
    if parameter is None or is_named or not issubclass(space.config_class, TaskConfig):
        return space, ()  # a function may give `precision` another meaning
    assert isinstance(parameter.distribution, CategoricalDistribution)
    choices = [str(mode) for mode in parameter.distribution.choices]
    if Precision.FP16 not in choices or space.get_defaults().get("precision") == Precision.FP16:
        return space, ()

    line = (
        "fp16 is left out of the search: its workers have no GPU. "
        f"A new search with --search precision={','.join(choices)} keeps it"
    )
    return _narrow(space, [mode for mode in choices if mode != Precision.FP16]), (line,)


def leave_out_unsupported(
    options: SpaceOptions, space: Space, reasons: Mapping[str, str]
) -> tuple[Space, tuple[str, ...]]:
    """Return `space` without precisions that the workers cannot run, and a line for the user about each.

    Args:
        reasons: Why the workers cannot run the task, by precision.

    Raises:
        UsageError: No precision is left, or the user named one of these for a trial.
    """
    parameter = next((p for p in space.parameters if p.name == "precision"), None)
    d = None if parameter is None else parameter.distribution
    searched = d.choices if isinstance(d, CategoricalDistribution) else [space.fixed_values()["precision"]]
    choices = [str(mode) for mode in searched]
    kept = [mode for mode in choices if mode not in reasons]
    wanted = [mode for point in options.try_ if (mode := str(point.get("precision"))) in reasons]
    if wanted := wanted or ([] if kept else choices):
        raise UsageError(
            f"precision must be one in which the workers can run the task, but got {wanted[0]}: {reasons[wanted[0]]}. "
            f"Choose --{'search' if len(kept) > 1 else 'set'} precision={','.join(kept) or Precision.FP32}."
        )
    lines = (
        f"{mode} is left out of the search: its workers cannot run the task in it: {reasons[mode]}"
        for mode in choices
        if mode in reasons
    )
    return _narrow(space, kept), tuple(lines)


def _narrow(space: Space, kept: Sequence[str]) -> Space:
    """Return `space` with these precisions. A single one is fixed."""
    if len(kept) == 1:
        parameters = tuple(p for p in space.parameters if p.name != "precision")
        return Space(space.config_class, parameters, {**space.fixed, "precision": kept[0]})
    distribution = CategoricalDistribution(kept)
    parameters = tuple(replace(p, distribution=distribution) if p.name == "precision" else p for p in space.parameters)
    return replace(space, parameters=parameters)


def get_device_type(options: ResourceOptions) -> str:
    """Return the type of the device of a trial on this machine: "cuda" or "cpu"."""
    return "cuda" if options.gpus_per_worker != 0 and count_gpus() else "cpu"


def may_train_on_gpus(options: ResourceOptions) -> bool:
    """Return whether trials may get a GPU. A cluster that the search joins says so only when its nodes are checked."""
    return uses_existing_cluster() or get_device_type(options) == "cuda"


def uses_existing_cluster() -> bool:
    """Return whether the search joins a running Ray. RAY_ADDRESS is set, e.g. in a submitted job."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")
