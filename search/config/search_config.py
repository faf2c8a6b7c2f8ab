"""Everything that one search is started with, checked before anything is started or written."""

import re
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from search.config.fidelity import Unit
from search.config.validators import (
    as_list,
    join_choices,
    parse_duration,
    parse_fidelity,
    parse_model_name,
    parse_point,
    parse_stop_condition,
    wrap_in_list,
)
from search.errors import UsageError, format_validation_errors, suggest_nearest
from search.storage import locations
from search.storage.working_copy import local_path_of
from trainables.filesystem.paths import RemotePath, StoragePath

SamplerName = Literal["tpe", "gp", "cmaes", "qmc", "nsga2", "random"]
SchedulerName = Literal["asha", "asha-stop", "hyperband", "median", "pbt", "none"]
SCHEDULERS_WITH = {  # the options that only some schedulers know
    "reduction_factor": ("asha", "asha-stop", "hyperband"),
    "grace_period": ("asha", "asha-stop", "hyperband", "median"),
    "population": ("pbt",),
    "exploit_every": ("pbt",),
}
# What may be overridden when a search is resumed: nothing that makes its trials another experiment.
RESUME_OVERRIDES = {
    "trials",
    "time_budget",
    "gpu_hours",
    "stop_when",
    "patience",
    "workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "resources",
    "concurrency",
    "placement",
    "sampler",
    "max_failures",
    "stall_timeout",
    "study",
    "cold",
    "recycle_after",
    "quiet",
    "log_model",
    "register",
}

RETIRED_KEYS = {"memory_growth"}  # older search.yaml files and studies have them


class SearchConfig(BaseModel):
    """One search. The fields are the options of the command line and the keys of a YAML file."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    task: str = Field(description="a built-in task, path/to/file.py:ClassName or path/to/file.py:function")
    objective: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        (),
        description="the metric of a function's reports that the search improves, or several: see docs/objectives.md",
    )
    mode: Literal["min", "max"] | None = Field(None, description="of the first objective")
    trials: int = Field(16, ge=1, description="how many trials to start; unsaid: as many as the task says, 16 mostly")
    time_budget: Annotated[float | None, BeforeValidator(parse_duration)] = Field(None, gt=0, description="30m, 2h")
    gpu_hours: float | None = Field(
        None, gt=0, description="that trials may hold, resumed ones included; without GPUs, workers are counted"
    )
    stop_when: Annotated[str, BeforeValidator(parse_stop_condition)] = Field(
        "", description="end with the first report like this: val/score>=0.4"
    )
    patience: int | None = Field(None, ge=1, description="end after so many trials without a better best")
    workers: int = Field(1, ge=1, description="workers of one trial")
    cpus_per_worker: float = Field(1, gt=0)
    gpus_per_worker: float | None = Field(None, ge=0, description="none: 1 where the cluster has GPUs, else 0")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="custom resources of a worker, by name"
    )
    concurrency: int | None = Field(None, ge=1, description="trials at a time; none: as many as fit")
    placement: Literal["pack", "spread"] = Field(
        "pack", description="fill a node before the next, or spread the workers and the trials over the nodes"
    )
    scheduler: SchedulerName = Field("asha", description="who goes on: see docs/schedulers.md")
    reduction_factor: int = Field(3, ge=2, description="one in so many goes on at each rung")
    fidelity: Unit = Field("epochs", description="in what it is measured how much a trial gets")
    max_fidelity: Annotated[float | None, BeforeValidator(parse_fidelity)] = Field(
        None, gt=0, description="what a trial gets at most; its epochs end it too"
    )
    grace_period: Annotated[float | None, BeforeValidator(parse_fidelity)] = Field(
        None, gt=0, description="what every trial gets; none: 1 epoch, what the task says, or what leaves three rungs"
    )
    population: int | None = Field(None, ge=2, description="members of pbt; none: half of the trials, 20 at most")
    exploit_every: int | None = Field(
        None, ge=1, description="epochs between two comparisons of pbt; none: an eighth of a trial's"
    )
    sampler: SamplerName = Field("tpe")
    seed: int = Field(0, ge=0, lt=2**31, description="of the sampler, and of every trial that sets none")
    set: dict[str, Any] = Field(default_factory=dict, description="fixed parameters by name")
    search: dict[str, Annotated[str, BeforeValidator(join_choices)]] = Field(
        default_factory=dict, description="searched parameters by name"
    )
    try_: Annotated[list[Annotated[dict[str, Any], BeforeValidator(parse_point)]], BeforeValidator(wrap_in_list)] = (
        Field(
            default_factory=list,
            alias="try",
            description="points to try after the task's defaults: lr=1e-3,precision=bf16",
        )
    )
    warm_start: Annotated[list[str], BeforeValidator(wrap_in_list)] = Field(
        default_factory=list, description="earlier searches to learn from: a name, a folder, mlflow:EXPERIMENT"
    )
    name: str = Field("", description="of the search and its folder; empty: task, date and time")
    study: str = Field("", description="sqlite:///path.db or postgresql://host/database; empty: beside the search")
    storage: Annotated[StoragePath, BeforeValidator(locations.parse_location), PlainSerializer(str)] = Field(
        Path("runs"), description="the folder that holds the folders of searches, or a bucket: s3://bucket/path"
    )
    experiment: str = Field("", description="in MLflow; empty: the task")
    tracking_uri: str = Field("", description="of MLflow; empty: MLFLOW_TRACKING_URI, else mlflow.db in storage")
    max_failures: int = Field(
        3, ge=0, description="how often a trial may lose its workers, or its gang, without getting any further"
    )
    stall_timeout: Annotated[float | None, BeforeValidator(parse_duration)] = Field(
        None, gt=0, description="10m: a trial in which nothing moves for so long fails; none: it may wait for ever"
    )
    cold: bool = Field(False, description="new workers for every trial, as for a task that cannot share a process")
    recycle_after: int | None = Field(None, ge=1, description="trials after which workers are started anew")
    log_model: bool = Field(False, description="the best checkpoint is a model in MLflow when the search ends")
    register_: Annotated[str | None, BeforeValidator(parse_model_name)] = Field(
        None, alias="register", description="that, and a version of the model of this name in the registry"
    )
    once: bool = Field(False, description="one training run with the defaults, no search")
    quiet: bool = Field(False, description="show warnings, failures and the end")

    @property
    def path(self) -> StoragePath:
        """Where everything of this search lies, MLflow's store excepted."""
        return self.storage / self.name

    @property
    def local_path(self) -> Path:
        """The same on the driver's disk: of a search in a bucket, what the driver works in while it runs."""
        return local_path_of(self.path)


def load_config(given: dict[str, Any], file: Path | None = None) -> SearchConfig:
    """The search that `given` options, on top of a YAML `file`, ask for. Paths come out absolute.

    Raises:
        UsageError: All that is wrong, a line each.
    """
    from_file = _read_yaml(file)
    values = {key: value for key, value in {**from_file, **given}.items() if key not in RETIRED_KEYS}
    for key in ("set", "search", "resources"):  # a flag changes one parameter and keeps the others of the file
        of_file = from_file.get(key) or {}
        if not isinstance(of_file, dict):
            raise UsageError(f"{file}: {key} must hold parameters by name, but got {of_file!r}.")
        values[key] = {**of_file, **given.get(key, {})}
    for key in ("try", "warm_start"):  # a flag adds to what the file has
        values[key] = [*wrap_in_list(from_file.get(key) or []), *given.get(key, [])]
    options = [field.alias or name for name, field in SearchConfig.model_fields.items()]
    unknown = [key for key in values if key not in options]
    if unknown:
        raise UsageError(
            *(
                f"{file}: {key} must be an option of a search, but there is none of that name. "
                f"{suggest_nearest(key, options)}"
                for key in unknown
            )
        )
    try:
        config = SearchConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(*(_format_option_problem(problem) for problem in format_validation_errors(error))) from error
    return resolve_config(config)


def resolve_config(config: SearchConfig) -> SearchConfig:
    """`config` with absolute paths, and with what follows from the rest where it names nothing itself.

    Raises:
        UsageError: Two options contradict each other.
    """
    if config.once and (config.search or config.trials not in (1, SearchConfig.model_fields["trials"].default)):
        raise UsageError("--once must come without --trials and --search: it is one run with fixed parameters.")
    for name, flag in (("try_", "--try"), ("warm_start", "--warm-start"), ("patience", "--patience")):
        if config.once and getattr(config, name):
            raise UsageError(f"--once must come without {flag}: it is one run with fixed parameters.")
    if config.cold and config.recycle_after not in (None, 1):
        raise UsageError(
            f"--recycle-after must be 1 with --cold, but got {config.recycle_after}. Leave one of them out."
        )
    gpus = config.gpus_per_worker or 0.0
    if gpus > 1 and gpus % 1:
        raise UsageError(f"--gpus-per-worker must be whole above 1, but got {gpus:g}: a part of a GPU is one worker's.")
    if 0 < gpus < 1 and config.workers > 1:
        raise UsageError(
            f"--gpus-per-worker must be whole with --workers {config.workers}, but got {gpus:g}: "
            "NCCL refuses two ranks on one GPU. Say --workers 1 or --gpus-per-worker 1."
        )
    reserved = sorted({"CPU", "GPU", "memory"} & config.resources.keys())
    if reserved:
        raise UsageError(f"--resource must name a custom resource, but got {reserved[0]}. See --cpus-per-worker.")
    scheduler = "none" if config.once else config.scheduler
    problems = [*check_scheduler_options(config, scheduler), *check_fidelity_options(config, scheduler)]
    study = ""
    if config.study:
        from search.storage.study_store import resolve_url  # imports Optuna and SQLAlchemy

        try:
            study = resolve_url(config.study)
        except UsageError as error:
            problems += error.problems
    elif isinstance(config.storage, RemotePath) and not config.storage.is_atomic:
        problems.append(
            f"--study must be a database with --storage {config.storage.scheme}://, but got none: a file there is "
            "empty while it is written, and a driver that dies then would lose it. Say postgresql://host/database."
        )
    if len(config.objective) > 1 and config.sampler == "cmaes":
        problems.append(
            f"--sampler must be tpe, gp, nsga2, qmc or random with {len(config.objective)} objectives, but got cmaes."
        )
    if problems:
        raise UsageError(*problems)
    path, _, label = config.task.rpartition(":")
    return config.model_copy(
        update={
            "task": f"{Path(path).resolve()}:{label}" if path.endswith(".py") else config.task,
            "name": config.name or f"{label.lower().strip('_')}-{time.strftime('%Y%m%d-%H%M%S')}",
            "storage": locations.make_absolute(config.storage),
            "study": study,
            "warm_start": [locations.parse_warm_start_source(source, config.storage) for source in config.warm_start],
            "experiment": config.experiment or label,
            **({"trials": 1} if config.once else {}),  # unsaid, it is the task's to say
            "scheduler": scheduler,
            # Here, so that more trials for a search that is taken up leave its population as it is.
            "population": config.population or (_compute_population(config) if scheduler == "pbt" else None),
        }
    )


def _compute_population(config: SearchConfig) -> int | None:
    """How many members a population has, once it is known how many trials there are."""
    return max(2, min(20, config.trials // 2)) if "trials" in config.model_fields_set else None


def check_scheduler_options(config: SearchConfig, scheduler: str) -> list[str]:
    """Options that do not go with the scheduler."""
    problems = [
        f"{option_name(name)} must come with --scheduler {', '.join(known)}, but got {scheduler}."
        for name, known in SCHEDULERS_WITH.items()
        if scheduler not in known and getattr(config, name) != SearchConfig.model_fields[name].default
    ]
    if scheduler == "pbt" and config.trials < 2:
        problems.append(f"--trials must be at least 2 with --scheduler pbt, but got {config.trials}.")
    elif scheduler == "pbt" and "trials" in config.model_fields_set and (config.population or 0) > config.trials:
        problems.append(
            f"--population must be at most --trials, {config.trials}, but got {config.population}. "
            "Trials beyond it are the copies."
        )
    return problems


def check_fidelity_options(config: SearchConfig, scheduler: str) -> list[str]:
    """What does not go with the unit of fidelity."""
    unit, most, grace = config.fidelity, config.max_fidelity, config.grace_period
    problems = []
    if unit != "epochs" and scheduler in ("median", "pbt"):
        problems.append(f"--fidelity must be epochs with --scheduler {scheduler}, but got {unit}.")
    if unit != "epochs" and most is None:
        example = "600 or 10m" if unit == "gpu-seconds" else "100000"
        problems.append(
            f"--max-fidelity must come with --fidelity {unit}, but got none. Say what a trial gets at most: {example}."
        )
    for name, amount in (("--max-fidelity", most), ("--grace-period", grace)):
        if unit == "epochs" and amount is not None and amount % 1:
            problems.append(f"{name} must be a whole number of epochs, but got {amount:g}.")
    if most is not None and grace is not None and grace > most:
        problems.append(f"--grace-period must be at most --max-fidelity, {most:g}, but got {grace:g}.")
    return problems


def to_yaml(config: SearchConfig) -> str:
    """`config` as YAML that starts the same search again, under a new name."""
    values = config.model_dump(mode="json", exclude={"name"}, exclude_none=True, by_alias=True)
    return yaml.safe_dump({key: value for key, value in values.items() if value not in ("", [])}, sort_keys=False)


def _read_yaml(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config must be a YAML file, but {file} is not: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config must hold options by name, but {file} holds {type(values).__name__}.")
    return {str(key): value for key, value in values.items()}


def _format_option_problem(problem: str) -> str:
    name, _, rest = problem.partition(" ")
    name = re.sub(r"\.\d+$", "", name)  # the place in a list
    return f"{'task' if name == 'task' else option_name(name)} {rest}"


def option_name(name: str) -> str:
    """The option of the command line that sets the field `name`."""
    return "--" + {"resources": "resource"}.get(name, name).replace("_", "-")
