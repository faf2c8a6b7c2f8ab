"""What a search is kept in: begun anew, or taken up where its driver left it, with what has changed since."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from search.config import SearchConfig
from search.config.loading import to_yaml
from search.config.search_space import Space, restore_space
from search.config.task_source import load_task_source
from search.errors import StoreError, UsageError
from search.execution.cluster.session_cleanup import remove
from search.experiment import warm_start
from search.experiment.plan import SearchPlan, build_plan, build_space
from search.samplers.factory import create_sampler
from search.storage.atomic_file import write_atomic
from search.storage.backend import StudyStore
from search.storage.study_store import find_store, open_store
from search.study.metadata import build_resume_config, load_metadata
from search.study.record import load_search
from search.study.study import SearchStudy, create_study
from search.tracking import provenance, spool
from search.tracking.provenance import compute_digests
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import URI, check_tracking, redact, resolve_tracking_uri, tracking_environment
from trainables.filesystem.paths import RemotePath, StoragePath, remove_tree


@dataclass(frozen=True)
class OpenStudy:
    """The study of a search, held against other drivers until its `store` is closed.

    Attributes:
        about: What was remembered when the search began.
        notes: What the user should know of one that is taken up, a line each.
    """

    study: SearchStudy
    store: StudyStore
    about: dict[str, Any]
    notes: tuple[str, ...] = ()

    def create_tracker(
        self, planned: SearchPlan, say: Callable[[str], None], nodes: Sequence[Mapping[str, float]] | None = None
    ) -> MLflowCallback:
        """Tells MLflow of the search, and first what it lacks of the trials that there are.

        Args:
            say: Tells the user that MLflow is away, or back.
            nodes: What each node of Ray has; None if no trial will run any more.
        """
        config, prepare = planned.config, partial[None](lambda: None)
        spool.write_spool(config.local_path, [], None)  # of a driver before this one: the study has the trials
        if nodes is not None:
            prepare = partial(provenance.write, config.local_path, config.task, planned.source.modules, nodes)
        return MLflowCallback(
            config,
            *resolve_tracking_uri(config, tracking_environment(self.about)),
            objectives=planned.objectives,
            search_id=self.about["id"],
            earlier=self.study.get_trials(),
            trials=lambda: load_search(config.path).trials,
            say=say,
            prepare=prepare,
        )


def create_search(planned: SearchPlan, publish: Callable[[], None] = lambda: None) -> OpenStudy:
    """A new search in its folder: all that it could be taken up from is there before its first trial.

    Args:
        publish: Brings what is in the folder to where the search lies.

    Raises:
        UsageError: Its name was taken meanwhile, or it cannot be written. No search.yaml is left then.
    """
    try:
        with storage_errors():
            return _initialize_search(planned, publish)
    except BaseException:  # Ctrl-C too: a search that never began leaves nothing that looks like one; it goes on
        (planned.config.local_path / "search.yaml").unlink(missing_ok=True)
        raise


def _initialize_search(planned: SearchPlan, publish: Callable[[], None]) -> OpenStudy:
    config = planned.config
    _write_search_yaml(config)
    warm_start.save(config.local_path, planned.warm.trials)
    study, store = create_study(
        config.path,
        _build_sampler_factory(planned),
        planned.objectives,
        earlier=warm_start.as_sampler_trials(planned.warm.trials, planned.space, planned.objective),
        url=config.study,
        new=True,
    )
    try:
        publish()
        _save_metadata(study, planned)
        study.commit()
    except BaseException:  # Ctrl-C too: nobody else can free the lock in a notebook; it goes on
        try:
            with suppress(StoreError):
                store.close()
        finally:
            if isinstance(config.path, RemotePath):
                with suppress(OSError):
                    remove_tree(config.path)
        raise
    return OpenStudy(study, store, study.metadata)


def _save_metadata(study: SearchStudy, planned: SearchPlan) -> None:
    config, space = planned.config, planned.space
    study.save_metadata(
        {
            "id": uuid.uuid4().hex,
            "config": config.model_dump(mode="json", by_alias=True),
            "first": planned.first,
            "searched": {p.name: distribution_to_json(p.distribution) for p in space.parameters},
            "fixed": space.fixed_values(),
            "files": compute_digests(planned.source.modules),
            "tracking_uri": redact(os.environ.get(URI, "")),
        }
    )
    for point in planned.first:
        study.enqueue(point)


def open_search(place: StoragePath, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    """The search at `place`, whose files are at hand, to go on with the options that are `given` anew.

    Raises:
        UsageError: There is none, another process runs it, something that it needs is not there any more, or it
            cannot be written.
    """
    url = find_store(place, given.get("study", ""))
    with storage_errors():
        store = open_store(place, url)
        try:
            return _restore_search(place, store, {**given, "study": url})
        except BaseException:  # Ctrl-C too: nobody else can free the lock in a notebook; it goes on
            store.close()
            raise


@contextmanager
def storage_errors() -> Iterator[None]:
    """A disk that is full or read-only, or a bucket that is away, is told in a line.

    Raises:
        UsageError: It is.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error


def _restore_search(place: StoragePath, store: StudyStore, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    about = load_metadata(store.storage, place)
    config = build_resume_config(about, place, given)
    check_tracking(config, tracking_environment(about))
    source = load_task_source(config.task)
    space, notes = _resolve_space(about, build_space(config, source))
    planned = build_plan(config, source, space)
    objective = about["objective"], about["mode"]
    if objective != (planned.objective.metric, planned.objective.mode):
        raise UsageError(
            f"the task must have the objective that {place.name} began with, {' '.join(objective)}, "
            f"but has {planned.objective.metric} {planned.objective.mode}."
        )
    earlier, lost = _load_prior_trials(planned)
    notes += lost
    study = SearchStudy(
        store.storage,
        config.name,
        _build_sampler_factory(planned),
        planned.objectives,
        earlier,
        store.commit,
    )
    for point in about["first"]:
        study.enqueue(point)  # in case that the search died before it had
    remove(config.local_path / "ray")
    files = compute_digests(source.modules)
    if changed := _find_changed_files(about["files"], files):
        kept = _archive_code(config.local_path / "code", config.path, source.modules)
        study.save_metadata({**study.metadata, "files": files})
        notes.append(f"{', '.join(changed)} changed since {place.name} last ran, and trials go on with the new{kept}")
    tracking_uri = redact(tracking_environment(about)[URI])
    if not config.tracking_uri and tracking_uri != about["tracking_uri"]:
        notes.append(f"MLflow is at {tracking_uri} now: runs begin anew there")
    task = about["config"]["task"] if isinstance(place, RemotePath) else config.task  # not of a copy that goes away
    _write_search_yaml(config.model_copy(update={"task": task}))
    study.commit()
    trials = study.get_trials()
    ended = sum(trial.state.is_finished() for trial in trials)
    notes.append(f"search {config.name} goes on: {ended} trials have ended, {len(trials) - ended} have begun")
    return planned, OpenStudy(study, store, about, tuple(notes))


def _load_prior_trials(planned: SearchPlan) -> tuple[list[FrozenTrial], list[str]]:
    """The trials of earlier searches that the sampler knows, and a line if they cannot be read any more."""
    if not planned.config.warm_start:
        return [], []
    try:
        return warm_start.as_sampler_trials(
            warm_start.load(planned.config.local_path), planned.space, planned.objective
        ), []
    except (OSError, ValueError, KeyError, TypeError):
        return [], [f"{warm_start.FILE} cannot be read: the sampler knows nothing of earlier searches any more"]


def _build_sampler_factory(planned: SearchPlan) -> Callable[[int], BaseSampler]:
    return partial(create_sampler, planned.config.sampler, planned.config.seed)


def _resolve_space(about: Mapping[str, Any], now: Space) -> tuple[Space, list[str]]:
    """The space that the search began with, and a line for each parameter of which the task says otherwise `now`."""
    searched = {name: json_to_distribution(text) for name, text in about["searched"].items()}
    space = restore_space(now.config_class, searched, about["fixed"])
    goes_on, declared = _describe_parameters(space), _describe_parameters(now)
    known = searched.keys() | about["fixed"].keys()
    notes = []
    for name in sorted(known | goes_on.keys()):
        if name not in goes_on:
            notes.append(f"{name} was {about['fixed'][name]}: the task has no such parameter any more")
        elif name not in known:
            notes.append(f"{name} is {goes_on[name]}: the task had no such parameter before")
        elif goes_on[name] != declared[name]:
            notes.append(f"{name} stays {goes_on[name]}, as before, and is not {declared[name]}")
    return space, notes


def _describe_parameters(space: Space) -> dict[str, str]:
    """What is said of each parameter: its range, or its value."""
    ranges = {parameter.name: f"searched in {parameter}" for parameter in space.parameters}
    return {**ranges, **{name: str(value) for name, value in space.fixed_values().items()}}


def _find_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _write_search_yaml(config: SearchConfig) -> None:
    """Write search.yaml, all of it or nothing: it says where the study is."""
    write_atomic(config.local_path / "search.yaml", to_yaml(config))


def _archive_code(code: Path, place: StoragePath, modules: Sequence[Path]) -> str:
    """Give the copy of the task's files, which trials ran so far, another name, unless it is what they run now."""
    if not code.exists() or any(path.is_relative_to(code.resolve()) for path in modules):
        return ""
    older = next(path for n in range(1, 1000) if not (path := code.with_name(f"code-{n}")).exists())
    code.rename(older)
    return f" code; what ran so far is in {place / older.name}"
