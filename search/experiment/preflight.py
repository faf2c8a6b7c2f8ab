"""Audits the task of a search before it starts, in a separate process on the device that trials get."""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import ValidationError

from searchlight.search.analysis.cost_estimate import CostEstimate, estimate_cost
from searchlight.search.errors import UsageError, format_validation_errors
from searchlight.search.execution.cluster.local_machine import (
    count_available_cpus,
    count_gpus,
    get_device_type,
    uses_existing_cluster,
)
from searchlight.search.execution.options import ResourceOptions
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.experiment.task_files import CODE, TASK_FILES, copy_code
from searchlight.search.scaling.size import convert_whole, get_measures, measure_size
from searchlight.search.space.search_space import Parameter, Space
from searchlight.search.task_source import TaskSource
from searchlight.search.tracking.provenance import get_searchlight_version
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.precision import Precision, lacks_kernels
from searchlight.trainables.preflight.findings import make_finding, sort_findings
from searchlight.trainables.preflight.messages import AuditRequest, AuditResult, audit_apart
from searchlight.trainables.registry import link_modules

LIMIT_S = 10.0  # of the audit itself, apart from the build of the task: a part that has begun may take longer
LONGEST_S = 600.0  # after which a task that hangs is ended
MODES_S = 30.0  # the same before a search: what its first worker audits shows a task that hangs
FILE = "preflight-{}.json"  # in the storage folder, by task: --dry-run reads the costs in it

Audit = dict[str, Any]


def run_preflight(plan: SearchPlan) -> Audit:
    """Audit the task of a search, and return an AuditResult as JSON.

    Raises:
        UsageError: The audit did not end in time.
    """
    request = {
        "reference": plan.source.reference,
        "request": asdict(build_request(plan.space, plan.config.workers)),
        "gpus": (plan.config.gpus_per_worker or 1.0) if has_gpus(plan.config) else 0.0,
        "is_function": plan.source.task_class is None,
    }
    run, file = _run_on_cluster if uses_existing_cluster() else _run_locally, _get_file(plan)
    audit = run(plan.source, plan.config, request)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps({"task": plan.config.task, **audit}))
    return audit


def check_on_gpu(plan: SearchPlan) -> Audit:
    """Audit the task of a search on a simulated GPU alone, in a process on this machine. Return an AuditResult as JSON.

    Raises:
        UsageError: The audit did not end in time.
    """
    request = replace(build_request(plan.space, plan.config.workers), is_gpu_only=True, wants_gpu=True)
    return _run_without_gpu(plan, request)


def check_sizes(plan: SearchPlan, sizes: Mapping[str, Mapping[str, float]]) -> Audit:
    """Compare the activations of a task at several sizes after a few updates. Return an AuditResult as JSON.

    Raises:
        UsageError: The task refuses a size, or the audit did not end in time.
    """
    configs = []
    for size in map(get_measures, sizes.values()):
        try:
            config = plan.space.build_config({**plan.space.get_defaults(), **convert_whole(size)})
        except ValidationError as error:
            raise UsageError(*format_validation_errors(error, "--sizes ")) from error
        configs.append((measure_size(size) ** (1 / len(size)), config.model_dump(mode="json")))
    return _run_without_gpu(plan, replace(build_request(plan.space, 1, is_quick=True), sizes=configs))


def _run_without_gpu(plan: SearchPlan, request: AuditRequest) -> Audit:
    keywords = {"reference": plan.source.reference, "request": asdict(request), "gpus": 0.0}
    keywords["is_function"] = plan.source.task_class is None
    return _run_locally(plan.source, plan.config.model_copy(update={"gpus_per_worker": 0.0}), keywords)


def build_request(space: Space, workers: int, is_quick: bool = False) -> AuditRequest:
    """Return what is to be audited: the defaults, and for the whole audit the corners of the space."""
    defaults = space.build_config(space.get_defaults()).model_dump(mode="json")
    modes = _list_choices(space, "precision") or [str(defaults.get("precision", Precision.FP32))]
    accumulations = _list_choices(space, "accumulation") or [defaults.get("accumulation", 1)]
    return AuditRequest(
        defaults,
        () if is_quick else tuple(list_corners(space)),
        tuple(map(str, modes)),
        workers,
        max(accumulations) > 1,
        4.0 if is_quick else LIMIT_S,
        is_quick,
    )


def identify_audit(request: AuditRequest, files: Mapping[str, str]) -> str:
    """Return a digest of everything that an audit by the first worker depends on, or "" if a part is unknown.

    It is unknown on a joined cluster, where the first worker may run on another node each time.

    Args:
        request: What that worker audits.
        files: The digests of the files that the task imports, by name.
    """
    if uses_existing_cluster():
        return ""
    machine = [platform.node(), platform.processor(), count_available_cpus()]
    if gpus := count_gpus():
        import torch

        machine += [torch.cuda.get_device_name(index) for index in range(gpus)]
    known = [asdict(request), dict(files), get_searchlight_version(), machine]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def list_corners(space: Space) -> list[tuple[str, dict[str, Any]]]:
    """Return configs at the ends of the space by name: all lowest values, all highest values, and each choice."""
    defaults = space.get_defaults()
    found: dict[str, dict[str, Any]] = {}
    for where, pick in (("all lowest", 0), ("all highest", 1)):
        values = space.choose(lambda parameter, pick=pick: _get_end(parameter, pick, defaults))  # type: ignore[misc]
        if values != defaults:
            found[where] = values
    for parameter in space.parameters:
        d = parameter.distribution
        for choice in d.choices if isinstance(d, CategoricalDistribution) and parameter.name != "precision" else ():
            if parameter.name in defaults and choice != defaults[parameter.name]:
                found[f"{parameter.name}={choice}"] = space.parse_point({**defaults, parameter.name: choice})
    corners = []
    for where, values in found.items():
        try:
            corners.append((where, space.build_config(values).model_dump(mode="json")))
        except ValidationError:  # the task refuses a combination; the sampler would meet it as a failed trial
            corners.append((where, {**space.build_config({}).model_dump(mode="json"), **values}))
    return corners


def _get_end(parameter: Parameter, pick: int, defaults: dict[str, Any]) -> Any:
    d = parameter.distribution
    if isinstance(d, FloatDistribution | IntDistribution):
        return (d.low, d.high)[pick]
    assert isinstance(d, CategoricalDistribution)
    numbers = [choice for choice in d.choices if isinstance(choice, int | float) and not isinstance(choice, bool)]
    if len(numbers) == len(d.choices):
        return (min(numbers), max(numbers))[pick]
    return defaults.get(parameter.name, d.choices[0])


def _list_choices(space: Space, name: str) -> list[Any]:
    d = next((p.distribution for p in space.parameters if p.name == name), None)
    if isinstance(d, CategoricalDistribution):
        return list(d.choices)
    return [d.low, d.high] if isinstance(d, FloatDistribution | IntDistribution) else []


def has_gpus(options: ResourceOptions) -> bool:
    """Return whether each worker of the search gets a GPU, as far as this machine can tell."""
    return bool(options.gpus_per_worker) or get_device_type(options) == "cuda"


def estimate(plan: SearchPlan, audit: Audit) -> CostEstimate | None:
    """Return the estimated cost of the whole search, or None if it is unknown."""
    config, gpus = plan.config, has_gpus(plan.config)
    epochs = plan.expected_cost if config.fidelity == "epochs" else None
    each = config.workers * ((config.gpus_per_worker or 1.0) if gpus else config.cpus_per_worker)
    have = count_gpus() if gpus else count_available_cpus()
    concurrent = config.concurrency or max(1, int(have // each))
    devices = each if gpus else float(config.workers)
    return estimate_cost(epochs, plan.trials, concurrent, devices, audit["costs"], gpus)


def load_estimate(plan: SearchPlan) -> CostEstimate | None:
    """Return the estimated cost by the last audit of the task in the storage, or None without an audit."""
    try:
        audit = json.loads(_get_file(plan).read_text(encoding="utf-8"))
        return estimate(plan, audit) if audit["task"] == plan.config.task else None
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or one of another version
        return None


def _get_file(plan: SearchPlan) -> Path:
    return plan.config.local_path.parent / FILE.format(plan.source.name.lower())


def _run_locally(
    source: TaskSource, options: ResourceOptions, request: dict[str, Any], longest_s: float = LONGEST_S
) -> Audit:
    try:
        with _copied_code(source) as code:
            links = link_modules(code.with_name("modules"), code)
            return audit_apart(request, _build_environment(options, links), longest_s)
    except TimeoutError as error:
        raise UsageError(
            f"--preflight must end within {longest_s:.0f} s, but {source.name} has not. "
            "It may hang in build, in a data loader or in evaluate."
        ) from error
    except RuntimeError as error:
        return _describe_death(str(error))


def find_unsupported_modes(plan: SearchPlan) -> dict[str, str]:
    """Return why workers without a GPU cannot run the task, by precision of the space.

    An audit in a process of its own shows it, if the CPU lacks operations. It takes some seconds, so that other
    searches do without.
    """
    source, config = plan.source, plan.config
    request = build_request(plan.space, config.workers, is_quick=True)
    modes = [mode for mode in Precision if mode in request.modes and mode != Precision.FP32]
    if source.task_class is None or config.no_preflight or not modes:
        return {}
    keywords = {"reference": source.reference, "request": asdict(request), "gpus": 0.0, "is_function": False}
    keywords["files"] = str(config.local_path / TASK_FILES)
    import torch  # here, since the search of a program needs none

    try:
        if uses_existing_cluster():
            audit = _call_on_node(config, _audit_doubtful, MODES_S, modes=modes, **keywords)
        elif any(lacks_kernels(mode, torch.device("cpu")) for mode in modes):
            audit = _run_locally(source, config, keywords, MODES_S)
        else:
            return {}
    except UsageError:  # not in time: the space stays, and trials in a mode without operations fail with its name
        return {}
    found = [each for each in audit["findings"] if each["name"] == "mode-unsupported"]
    return {each["subject"].partition(",")[0]: each["figure"].partition(". ")[0] for each in found}


def _audit_doubtful(modes: Sequence[Precision], **keywords: Any) -> Audit:
    """Audit the task if this node lacks operations in any of `modes`, and return the result."""
    import torch

    from searchlight.trainables.precision import lacks_kernels  # on the node, which has its own copy

    is_doubtful = any(lacks_kernels(mode, torch.device("cpu")) for mode in modes)
    return _audit_on_node(**keywords) if is_doubtful else AuditResult([]).as_json()


def _describe_death(end: str) -> Audit:
    """Return the audit of a task that ended its process."""
    from searchlight.trainables.preflight.checks import errors  # noqa: F401  # declares the kind

    finding = make_finding("training-fails", "the process", end)
    return AuditResult(sort_findings([finding])).as_json()


@contextmanager
def _copied_code(source: TaskSource) -> Iterator[Path]:
    """Copy the modules of the task to a temporary folder, as a search does to its own."""
    with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
        copy_code(source, Path(folder))
        yield Path(folder, CODE)


def _build_environment(options: ResourceOptions, links: Path) -> dict[str, str]:
    """Return the environment variables of a worker: `links` to the code in PYTHONPATH, and one thread per CPU."""
    path = [str(links), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = str(max(1, int(options.cpus_per_worker)))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return environment if has_gpus(options) else {**environment, "CUDA_VISIBLE_DEVICES": ""}


def _run_on_cluster(source: TaskSource, options: ResourceOptions, request: dict[str, Any]) -> Audit:
    """Audit the task on a node of the cluster, with the resources of one worker. Return the result."""
    from searchlight.search.execution.cluster.connection import ray_session

    with _copied_code(source) as code, ray_session(code):
        return _call_on_node(options, _audit_on_node, LONGEST_S, **request)


def _call_on_node(
    options: ResourceOptions, audit_on_node: Callable[..., Audit], longest_s: float, **request: Any
) -> Audit:
    """Return the result of `audit_on_node` on a node of the cluster, with the resources of one worker."""
    import ray

    from searchlight.search.execution.cluster import resources

    present, growing = resources.get_node_resources(), resources.autoscaler_limits()
    worker = resources.resolve_worker_resources(options, present, growing)
    custom = {name: amount for name, amount in worker.items() if name not in ("CPU", "GPU")}
    limits = {"num_cpus": worker.get("CPU", 1), "num_gpus": worker.get("GPU", 0), "resources": custom}
    task: Any = ray.remote(max_calls=1, max_retries=0, **limits)(audit_on_node)  # type: ignore[call-overload]
    try:
        audit: Audit = ray.get(task.remote(**{**request, "gpus": worker.get("GPU", 0.0)}), timeout=longest_s)
        return audit
    except ray.exceptions.GetTimeoutError as error:
        raise UsageError(f"--preflight must end within {longest_s:.0f} s, but has not.") from error
    except ray.exceptions.WorkerCrashedError as error:
        return _describe_death(str(error).splitlines()[0])


def _audit_on_node(**request: Any) -> Audit:
    from searchlight.trainables.preflight.process import audit_task  # on the node, which has its own copy

    return audit_task(**request)
