"""The options of a search."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, PositiveFloat

from searchlight.search.folder import locations
from searchlight.search.folder.locations import local_path_of
from searchlight.search.option import (
    Count,
    Duration,
    Point,
    ResourceAmount,
    join_choices,
    list_options,
    option,
    parse_model_name,
    parse_task,
    wrap_in_list,
)
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.stop_condition import parse_stop_condition
from searchlight.trainables.filesystem.paths import StoragePath

GROUPS = (  # the headings of --help, in order
    "Task",
    "Budget",
    "Resources",
    "Scheduler",
    "Sampler",
    "Search space and objective",
    "Storage and tracking",
    "Output",
    "Advanced",
    "Only in a YAML file",
)
SamplerName = Literal["tpe", "gp", "cmaes", "qmc", "nsga2", "random"]

# --resume may override options that keep trials comparable.
_budget = partial(option, "Budget", resumable=True)
_resource = partial(option, "Resources", resumable=True)
_sampler = partial(option, "Sampler")
_space = partial(option, "Search space and objective")
_storage = partial(option, "Storage and tracking")
_advanced = partial(option, "Advanced")


class SearchConfig(SchedulerOptions):
    """The options of a search. Each field declares an option of the command line and a key of a YAML file."""

    # In Python, also a class or a function. A planned search has the text.
    task: Annotated[Any, BeforeValidator(parse_task)] = option(
        "Task", ..., "", "Task to train: arc, liquid, lm, FILE.py:ClassName or FILE.py:function."
    )
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
    workers: Count = _resource(1, "N", "Number of workers of each trial.")
    cpus_per_worker: ResourceAmount = _resource(1, "N", "Number of CPUs of each worker.")
    gpus_per_worker: float | None = _resource(
        None, "N", "Number of GPUs of each worker, e.g. 1 or 0.5. Default: 1 if the cluster has GPUs, else 0.", ge=0
    )
    concurrency: Count | None = _resource(None, "N", "Largest number of trials at a time. Default: as many as fit.")
    sampler: SamplerName = _sampler(
        "tpe", "NAME", "Algorithm that proposes parameters: tpe, gp, cmaes, qmc, nsga2 or random.", resumable=True
    )
    seed: int = _sampler(0, "N", "Random seed of the sampler and of trials without another seed.", ge=0, lt=2**31)
    warm_start: Annotated[list[str], BeforeValidator(wrap_in_list)] = _sampler(
        [], "SEARCH", "Learn from an earlier search, given by its name, its folder or mlflow:EXPERIMENT."
    )
    search: dict[str, Annotated[str, BeforeValidator(join_choices)]] = _space(
        {}, "NAME=SPACE", "Search a parameter over a range or choices: 1e-5..1e-2:log, 8..64:step=8 or fp32,bf16."
    )
    set: dict[str, Any] = _space({}, "NAME=VALUE", "Fix a parameter at this value.")
    try_: Annotated[list[Point], BeforeValidator(wrap_in_list)] = _space(
        [],
        "NAME=VALUE,...",
        "Try these values right after the task's defaults, before the sampler proposes any.",
        alias="try",
    )
    objective: Annotated[tuple[str, ...], BeforeValidator(wrap_in_list)] = _space(
        (),
        "METRIC[:min|max]",
        "Metric to optimize. Several give a Pareto front. The first one of a task class must be its own objective. "
        "Default: what the task declares.",
    )
    once: bool = _space(False, "", "Train one trial with the defaults of the task, without a search.")
    name: str = _storage("", "NAME", "Name of the search and of its folder. Default: task, date and time.")
    storage: Annotated[StoragePath, BeforeValidator(locations.parse_location), PlainSerializer(str)] = _storage(
        Path("runs"), "PLACE", "Folder or bucket that holds the folders of searches, e.g. s3://bucket/path."
    )
    study: str = _storage(
        "", "URL", "Database of the study, e.g. sqlite:///path.db. Default: study.journal.", resumable=True
    )
    keep_checkpoints: Count = _storage(
        10,
        "N",
        "Keep the checkpoints of this many of the best trials. Those of the Pareto front, of the best confirming runs "
        "and of trials that have not ended are kept, too.",
        resumable=True,
    )
    register_: Annotated[str | None, BeforeValidator(parse_model_name)] = _storage(
        None, "MODEL", "Register the best checkpoint as a model in MLflow.", resumable=True, alias="register"
    )
    quiet: bool = option("Output", False, "", "Print only warnings, failures and the result.", resumable=True)
    resources: dict[str, ResourceAmount] = _advanced(
        {}, "NAME=AMOUNT", "Amount of a custom Ray resource of each worker.", resumable=True
    )
    placement: Literal["pack", "spread"] = _advanced(
        "pack", "pack|spread", "Fill one node with workers before the next, or spread them.", resumable=True
    )
    max_failures: int = _advanced(
        3, "N", "Fail a trial that loses its workers more often than this without progress.", resumable=True, ge=0
    )
    stall_timeout: Duration = _advanced(
        None,
        "TIME",
        "Fail a trial that makes no progress for this time, e.g. 10m. Default: the time of 10 epochs, at least 30m; "
        "no limit for a Ray Train function.",
        resumable=True,
    )
    recycle_after: Count | None = _advanced(
        None, "N", "Start new workers after this many trials. Default: no limit.", resumable=True
    )
    no_preflight: bool = _advanced(
        False, "", "Skip the audit of the task on the first worker, which takes a few seconds.", resumable=True
    )
    experiment: str = _advanced("", "NAME", "Name of the experiment in MLflow. Default: the name of the task.")
    tracking_uri: str = option(
        "Only in a YAML file", "", "", "URI of MLflow. Default: MLFLOW_TRACKING_URI, else mlflow.db in the storage."
    )

    @property
    def makes_model(self) -> bool:
        """Whether the best checkpoint becomes a model in MLflow at the end."""
        return self.register_ is not None

    @property
    def path(self) -> StoragePath:
        """The location of all files of this search except MLflow's store."""
        return self.storage / self.name

    @property
    def local_path(self) -> Path:
        """The local folder of this search. For a bucket, it is temporary while the driver runs."""
        return local_path_of(self.path)


OPTIONS = sorted(list_options(SearchConfig), key=lambda declared: GROUPS.index(declared.group))
