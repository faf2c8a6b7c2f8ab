"""Opens the study of a search: creates that of a new one, or resumes one and says what has changed."""

import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial
from pydantic import ValidationError

from searchlight.search.command.options import CommandOptions
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import build_resume_config, to_yaml
from searchlight.search.errors import StoreError, UsageError, format_validation_errors
from searchlight.search.execution.checkpoint_manager import CHECKPOINTS
from searchlight.search.execution.cluster.local_machine import (
    leave_out_fp16,
    may_train_on_gpus,
    uses_existing_cluster,
)
from searchlight.search.execution.cluster.session_cleanup import remove
from searchlight.search.experiment import warm_start
from searchlight.search.experiment.plan import SearchPlan, build_plan, build_space
from searchlight.search.experiment.task_files import CODE, find_source, record_code
from searchlight.search.folder.locations import check_writable
from searchlight.search.formatting import log_model_command, pluralize
from searchlight.search.option import list_options
from searchlight.search.samplers.own import is_reference
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Space, restore_space
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.state import build_state
from searchlight.search.storage.backend import StudyStore
from searchlight.search.storage.database import database_errors
from searchlight.search.storage.study_store import find_store, open_store, read_search_yaml
from searchlight.search.study.metadata import load_metadata
from searchlight.search.study.record import read_commands
from searchlight.search.study.study import SearchStudy, create_study
from searchlight.search.task_source import locate_file, strip_sent_folder
from searchlight.search.tracking import provenance
from searchlight.search.tracking.uri import URI, check_tracking, redact, tracking_environment
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath, remove_tree
from searchlight.trainables.precision import Precision


@dataclass(frozen=True)
class OpenStudy:
    """The study of a search, held against other drivers until its `store` is closed."""

    study: SearchStudy
    store: StudyStore
    notes: tuple[str, ...] = ()  # a line each about a resumed search for the user


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn the error of a full or read-only disk, or of an unreachable bucket, into a UsageError."""
    try:
        yield
    except (OSError, StoreError) as error:
        if isinstance(error, StoreError) and not isinstance(error.__cause__, OSError):
            raise  # of a database
        raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error


def create_search(plan: SearchPlan, publish: Callable[[], None] = lambda: None) -> OpenStudy:
    """Create a new search in its folder, with all that a resume needs before its first trial.

    `publish` copies the files of the folder to where the search lies.

    Raises:
        UsageError: The name was taken meanwhile, or the folder cannot be written. No search.yaml is left.
    """
    config = plan.config
    try:
        with storage_errors():
            write_search_yaml(plan, {})
            warm_start.save(config.local_path, plan.warm.trials)
            earlier = warm_start.as_sampler_trials(plan.warm.trials, plan.space, plan.objective)
            sampler = plan.create_sampler_factory()
            study, store = create_study(
                config.path, sampler, plan.objectives, earlier=earlier, url=config.study, new=True
            )
            try:
                publish()
                _save_metadata(study, plan)
                study.commit()
            except BaseException:  # also Ctrl-C: in a notebook, nothing else could release the lock
                _discard(config, store)
                raise
    except BaseException:  # also Ctrl-C: a search that never began must not look like one
        (config.local_path / "search.yaml").unlink(missing_ok=True)
        raise
    return OpenStudy(study, store)


def _discard(config: SearchConfig, store: StudyStore) -> None:
    try:
        with suppress(StoreError):
            store.close()
    finally:
        if config.path != config.local_path:  # the local folder is removed by the one that has created it
            with suppress(OSError):
                remove_tree(config.path)


def _save_metadata(study: SearchStudy, plan: SearchPlan) -> None:
    space = plan.space
    study.save_metadata(
        {
            "id": uuid.uuid4().hex,
            "config": plan.options,
            "first": plan.first,
            "defaults": space.get_defaults(),
            "notes": plan.notes,
            "searched": {p.name: distribution_to_json(p.distribution) for p in space.parameters},
            "fixed": space.fixed_values(),
            "rungs": [*plan.schedule.rungs],
            "schedule": str(plan.schedule),
            "units": dict(plan.source.task_class.units) if plan.source.task_class else {},
            "files": provenance.compute_digests(plan.source.modules),
            "flags": {name: asdict(flag) for name, flag in plan.command.flags.items()} if plan.command else {},
            "tracking_uri": redact(os.environ.get(URI, "")),
        }
    )
    for point in plan.first:
        study.enqueue(point)


def write_search_yaml(plan: SearchPlan, places: Mapping[str, str]) -> None:
    """Write all of search.yaml or nothing: it says where the study is. It has the `places` of the task and folder."""
    config = plan.config.model_copy(update=places)
    write_atomic(config.local_path / "search.yaml", to_yaml(config))


def open_search(location: StoragePath, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    """Open the search at `location`, whose files are on this disk, to resume it with the overridden options `given`.

    Raises:
        UsageError: There is no such search, another process runs it, something that it needs is missing, or its
            folder cannot be written.
    """
    url = find_store(location, given.get("study", ""))
    with storage_errors():
        store = open_store(location, url)
        try:
            with database_errors(url):
                return _restore_search(location, store, {**given, "study": url})
        except BaseException:  # also Ctrl-C: in a notebook, nothing else could release the lock
            store.close()
            raise


def _restore_search(location: StoragePath, store: StudyStore, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    metadata = load_metadata(store.storage, location)
    study_id = store.storage.get_study_id_from_name(location.name)
    log = read_commands(store.storage.get_study_user_attrs(study_id))
    commands = build_state(log)
    changed = {name: commands.get_limit(name) for name in ("trials", "gpu_hours", "confirm")}
    given = {name: value for name, value in changed.items() if value is not None} | dict(given)
    trials = store.storage.get_all_trials(study_id, deepcopy=False)
    unfinished = [str(trial.number) for trial in trials if not trial.state.is_finished()]
    check_writable(location / CHECKPOINTS, unfinished)  # it may be another disk than that of the journal
    plan, notes = _restore_plan(location, metadata, given)
    config = plan.config
    earlier: list[FrozenTrial] = []
    if config.warm_start:
        try:
            earlier = warm_start.as_sampler_trials(warm_start.load(config.local_path), plan.space, plan.objective)
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"{warm_start.FILE} cannot be read: the sampler continues without earlier searches")
    sampler = plan.create_sampler_factory()
    study = SearchStudy(store.storage, config.name, sampler, plan.objectives, earlier, store.commit)
    for point in metadata["first"]:
        study.enqueue(point)  # the search may have died before it enqueued them
    if "concurrency" in given and commands.get_limit("concurrency") not in (None, config.concurrency):
        # A command stays in force until a later one, since it may ask for more than fits, and an option may not.
        newer = Command("budget", {"concurrency": config.concurrency}, why="an option of resume")
        study.record_command(LogEntry(len(log) + 1, newer, Answer(True, f"concurrency {config.concurrency}")))
    remove(config.local_path / "ray")
    # Else the next resume would delete other checkpoints, and leave a confirmation that was asked for.
    lasting: dict[str, Any] = {name: getattr(config, name) for name in ("keep_checkpoints", "confirm") if name in given}
    places = {name: strip_sent_folder(metadata["config"].get(name) or "") for name in ("task", "folder")}
    # Else this is the resume of a search of an older version, which kept a place in the folder of a job.
    lasting |= {name: place for name, place in places.items() if place != (metadata["config"].get(name) or "")}
    if lasting:
        study.save_metadata({**study.metadata, "config": {**metadata["config"], **lasting}})
    trials = study.get_trials()
    if config.makes_model or not plan.is_complete(trials):  # else nothing runs the task any more
        notes += record_code(study, plan.source, config)
    if metadata["config"].get("log_model") and not config.makes_model:  # an option of older versions
        notes.append(f"--log-model is gone: log the model after the search with {log_model_command(location, '')}")
    tracking_uri = redact(tracking_environment(metadata)[URI])
    if not config.tracking_uri and tracking_uri != metadata["tracking_uri"]:
        notes.append(f"MLflow is at {tracking_uri} now: new runs are created there")
    # The task may be in a working copy, which is removed at the end, in the folder of a job, or in the search's own
    # copy of a file that is put back later.
    is_lasting = config.local_path == location and Path(places["task"]).is_absolute() and not _uses_copy(config)
    write_search_yaml(plan, {**places, **({"task": config.task} if is_lasting else {})})
    study.commit()
    search_trials = study.get_searched_trials()
    ended, runs = sum(trial.state.is_finished() for trial in search_trials), len(trials) - len(search_trials)
    line = f"search {config.name} continues: {ended} trials have ended, {len(search_trials) - ended} have not"
    notes.append(f"{line}, {pluralize(runs, 'confirming run')} as well" if runs else line)
    return plan, OpenStudy(study, store, tuple(notes))


def _restore_plan(
    location: StoragePath, metadata: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[SearchPlan, list[str]]:
    """Return the plan of a search that is resumed, and a line for each parameter that its task declares otherwise."""
    config = build_resume_config(metadata, location, given)
    if given.get("study"):
        _check_task(location, metadata["config"], config)
        if "sampler" not in given:
            _check_sampler(location, config.sampler)
    check_tracking(config, tracking_environment(metadata))
    source = find_source(config)
    declared = build_space(config, source)
    may_lack_gpus = uses_existing_cluster() or not may_train_on_gpus(config)
    if may_lack_gpus and Precision.FP16 not in _list_precisions(metadata):  # the search left it out, too
        declared, _ = leave_out_fp16(config, declared)
    space, notes = _resolve_space(metadata, declared)
    notes += _describe_copy(metadata["config"]["task"], config)
    plan = build_plan(config, source, space)
    before, current = Objective(metadata["objective"], metadata["mode"]), plan.objective
    if before != current:
        raise UsageError(
            f"the task must have the objective that {location.name} began with, {before.metric} {before.mode}, "
            f"but has {current.metric} {current.mode}."
        )
    return plan, notes + _describe_schedule(metadata, plan)


def _describe_schedule(metadata: Mapping[str, Any], plan: SearchPlan) -> list[str]:
    """Return a line for the user if an earlier version began the search, and chose other rungs or brackets."""
    rungs = [*plan.schedule.rungs]
    is_same = metadata.get("rungs", rungs) == rungs
    if plan.config.scheduler == "hyperband" and len(rungs) > 1:
        is_same = metadata.get("schedule") == str(plan.schedule)
    told = "an earlier version chose other rungs, so a trial that waits may continue without comparison; now"
    return [] if is_same else [f"{told} {plan.schedule}"]


def _describe_copy(task: str, config: SearchConfig) -> list[str]:
    """Return a line for the user if `config` has the search's copy of its former `task`, whose file is gone."""
    code, former = config.local_path / CODE, Path(task.rpartition(":")[0])
    if former.parent.parts[-2:] == (config.name, CODE) or Path(config.task).parent != code.resolve():
        return []  # the search itself made the file, or the present file is used
    return [f"there is no {locate_file(former)}: the search uses its copy in {config.path / CODE}"]


def _check_task(location: StoragePath, stored: Mapping[str, Any], config: SearchConfig) -> None:
    """Check that a study in a database names the task and the command of the search's folder, since they will run.

    Other users may write to a database.

    Raises:
        UsageError: It names others.
    """
    if not (location / "search.yaml").exists():
        return
    kept, task = read_search_yaml(location), stored["task"]
    expected = str(kept.get("task", ""))
    if expected not in ("", task, strip_sent_folder(task), config.task) and not _uses_copy(config):
        raise UsageError(
            f"the study of {location.name} must have the task of {location / 'search.yaml'}, {expected}, but has "
            f"{task}. Another user may have changed the study. If its task is right, write it into the file."
        )
    own, other = (_list_command_options(values, location) for values in (kept, stored))
    for key, value in own.items():
        if value != other[key]:
            raise UsageError(
                f"the study of {location.name} must have the {key} of {location / 'search.yaml'}, {value or 'none'}, "
                f"but has {other[key] or 'none'}. Another user may have changed the study. If it is right, write it "
                "into the file."
            )


def _list_command_options(values: Mapping[str, Any], location: StoragePath) -> dict[str, str]:
    """Return the options of a command in `values` as texts, without those that a resume may change."""
    keys = [known.key for known in list_options(CommandOptions) if not known.resumable]
    try:
        options = CommandOptions(**{key: values[key] for key in keys if values.get(key) is not None})
    except ValidationError as error:
        raise UsageError(*format_validation_errors(error, f"{location / 'search.yaml'}: ")) from error
    found = {key: getattr(options, key) for key in keys}
    texts = {key: shlex.join(value) if isinstance(value, tuple) else str(value or "") for key, value in found.items()}
    return {**texts, "folder": strip_sent_folder(options.folder)}


def _check_sampler(location: StoragePath, sampler: str) -> None:
    """Check that a study in a database names the user's sampler of the search's folder, since its code will run.

    Raises:
        UsageError: It names another one.
    """
    if is_reference(sampler) and sampler != (expected := read_search_yaml(location).get("sampler")):
        raise UsageError(
            f"the study of {location.name} must have the sampler of {location / 'search.yaml'}, {expected or 'tpe'}, "
            f"but has {sampler}. Another user may have changed the study. Say which one is right with --sampler."
        )


def _uses_copy(config: SearchConfig) -> bool:
    """Return whether the task of `config` is in the search's copy of its files."""
    return Path(config.task.rpartition(":")[0]).is_relative_to((config.local_path / CODE).resolve())


def _list_precisions(metadata: Mapping[str, Any]) -> Sequence[Any]:
    """Return the precisions that the search began with, searched or fixed."""
    if "precision" not in metadata["searched"]:
        return [metadata["fixed"].get("precision")]
    distribution = json_to_distribution(metadata["searched"]["precision"])
    return distribution.choices if isinstance(distribution, CategoricalDistribution) else []


def _resolve_space(metadata: Mapping[str, Any], current: Space) -> tuple[Space, list[str]]:
    distributions = {name: json_to_distribution(text) for name, text in metadata["searched"].items()}
    space = restore_space(current.config_class, distributions, metadata["fixed"])
    kept, declared = _describe_parameters(space), _describe_parameters(current)
    known = distributions.keys() | metadata["fixed"].keys()
    notes = []
    for name in sorted(known | kept.keys()):
        if name not in kept:
            notes.append(f"{name} was {metadata['fixed'][name]}: the task has no such parameter any more")
        elif name not in known:
            notes.append(f"{name} is {kept[name]}: the task had no such parameter before")
        elif kept[name] != declared[name]:
            notes.append(f"{name} stays {kept[name]}, as before, and is not {declared[name]}")
    return space, notes


def _describe_parameters(space: Space) -> dict[str, str]:
    """Return the range or the value of each parameter as text."""
    ranges = {parameter.name: f"searched in {parameter}" for parameter in space.parameters}
    return {**ranges, **{name: str(value) for name, value in space.fixed_values().items()}}
