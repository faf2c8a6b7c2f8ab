"""The options that say how many trials run, on what, and what happens to those that fail."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat

from searchlight.search.option import Count, Duration, Options, option
from searchlight.search.space.stop_condition import parse_stop_condition

FEWEST_CONFIRMING_RUNS = 4
SMALLEST_AMOUNT = 1e-4  # Ray's smallest amount of a resource
ResourceAmount = Annotated[float, Field(ge=SMALLEST_AMOUNT)]

# --resume may override options that keep trials comparable.
_budget = partial(option, "Budget", resumable=True)
_resource = partial(option, "Resources", resumable=True)
_advanced = partial(option, "Advanced", resumable=True)


class BudgetOptions(Options):
    """When a search ends."""

    trials: Count = _budget(16, "N", "Stop after this many trials. A task may declare another default.")
    time_budget: Duration = _budget(None, "TIME", "Stop after this time, e.g. 30m or 2h. Default: no limit.")
    gpu_hours: PositiveFloat | None = _budget(
        None, "HOURS", "Stop after this many GPU-hours of all trials; on CPUs, worker-hours. Default: no limit."
    )
    stop_when: Annotated[str, BeforeValidator(parse_stop_condition)] = _budget(
        "",
        "METRIC>=VALUE",
        "Stop when a report meets this condition, e.g. val/score>=0.4. Confirming runs follow only if --confirm is "
        "given, too. Default: no condition.",
    )
    confirm: int | None = _budget(
        None,
        "RUNS",
        "Number of confirming runs, which train the best trials and the defaults again under new seeds. 0: none. "
        "Default: as many as take a fifth of the trials' training, at least 6; 0 with pbt and --once.",
        ge=0,
    )
    patience: Count | None = _budget(
        None, "N", "Stop after this many trials without a better value. Default: no limit."
    )

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        runs = self.confirm or 0
        if 0 < runs < FEWEST_CONFIRMING_RUNS:
            yield (
                f"--confirm must be 0 or at least {FEWEST_CONFIRMING_RUNS}, but got {runs}: a finalist and the "
                "defaults need two seeds each."
            )


class ResourceOptions(Options):
    """The workers of each trial, and how many trials run at a time."""

    workers: Count = _resource(1, "N", "Number of workers of each trial.")
    cpus_per_worker: ResourceAmount = _resource(1, "N", "Number of CPUs of each worker.")
    gpus_per_worker: float | None = _resource(
        None, "N", "Number of GPUs of each worker, e.g. 1 or 0.5. Default: 1 if the cluster has GPUs, else 0.", ge=0
    )
    concurrency: Count | None = _resource(None, "N", "Largest number of trials at a time. Default: as many as fit.")
    resources: dict[str, ResourceAmount] = _advanced(
        {}, "NAME=AMOUNT", "Amount of a custom Ray resource of each worker."
    )
    placement: Literal["pack", "spread"] = _advanced(
        "pack", "pack|spread", "Fill one node with workers before the next, or spread them."
    )

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        gpus = self.gpus_per_worker or 0.0
        if 0 < gpus < SMALLEST_AMOUNT:
            yield f"--gpus-per-worker must be 0 or at least {SMALLEST_AMOUNT:g}, but got {gpus:g}."
        if gpus > 1 and gpus % 1:
            yield f"--gpus-per-worker must be whole above 1, but got {gpus:g}: a part of a GPU is one worker's."
        if 0 < gpus < 1 and self.workers > 1:
            yield (
                f"--gpus-per-worker must be whole with --workers {self.workers}, but got {gpus:g}: "
                "NCCL refuses two ranks on one GPU. Use --workers 1 or --gpus-per-worker 1."
            )
        for reserved in sorted({"CPU", "GPU", "memory"} & self.resources.keys()):
            yield f"--resource must name a custom resource, but got {reserved}. See --cpus-per-worker."


class TrialOptions(Options):
    """What is kept of trials, when they fail, and how long their workers last."""

    keep_checkpoints: Count = option(
        "Storage and tracking",
        10,
        "N",
        "Keep the checkpoints of this many of the best trials. Those of the Pareto front, of the best confirming runs "
        "and of trials that have not ended are kept, too.",
        resumable=True,
    )
    max_failures: int = _advanced(
        3, "N", "Fail a trial that loses its workers more often than this without progress.", ge=0
    )
    stall_timeout: Duration = _advanced(
        None,
        "TIME",
        "Fail a trial that makes no progress for this time, e.g. 10m. Default: the time of 10 epochs, at least 30m; "
        "no limit for a Ray Train function.",
    )
    recycle_after: Count | None = _advanced(None, "N", "Start new workers after this many trials. Default: no limit.")
    no_preflight: bool = _advanced(
        False,
        "",
        "Skip the audit of the task on the first worker, which takes a few seconds. A failed first trial of a function "
        "then does not end the search.",
    )
