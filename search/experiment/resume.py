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
from search.config.search_config import dump
from search.config.search_space import Space, pinned
from search.config.task_source import find_task
from search.errors import StoreError, UsageError
from search.execution.cluster.session_cleanup import remove
from search.experiment import warm_start
from search.experiment.plan import Plan, checked, space_of
from search.samplers.factory import make_sampler
from search.storage.atomic_file import write_whole
from search.storage.study_store import Store, find_store, open_store
from search.study.metadata import config_of, remembered
from search.study.record import read
from search.study.study import SearchStudy, create
from search.tracking import provenance, spool
from search.tracking.provenance import digests
from search.tracking.tracker import Tracker
from search.tracking.uri import URI, check_tracking, shown, store_of, tracked
from trainables.filesystem.paths import Place, Remote, remove_tree


@dataclass(frozen=True)
class Held:
    """The study of a search, held against other drivers until its `store` is closed.

    Attributes:
        about: What was remembered when the search began.
        notes: What the user should know of one that is taken up, a line each.
    """

    study: SearchStudy
    store: Store
    about: dict[str, Any]
    notes: tuple[str, ...] = ()

    def tracker(
        self, planned: Plan, say: Callable[[str], None], nodes: Sequence[Mapping[str, float]] | None = None
    ) -> Tracker:
        """Tells MLflow of the search, and first what it lacks of the trials that there are.

        Args:
            say: Tells the user that MLflow is away, or back.
            nodes: What each node of Ray has; None if no trial will run any more.
        """
        config, prepare = planned.config, partial[None](lambda: None)
        spool.keep(config.folder, [], None)  # of a driver before this one: the study has the trials
        if nodes is not None:
            prepare = partial(provenance.write, config.folder, config.task, planned.source.modules, nodes)
        return Tracker(
            config,
            *store_of(config, tracked(self.about)),
            objectives=planned.objectives,
            search_id=self.about["id"],
            earlier=self.study.trials(),
            trials=lambda: read(config.place).trials,
            say=say,
            prepare=prepare,
        )


def begin(planned: Plan, publish: Callable[[], None] = lambda: None) -> Held:
    """A new search in its folder: all that it could be taken up from is there before its first trial.

    Args:
        publish: Brings what is in the folder to where the search lies.

    Raises:
        UsageError: Its name was taken meanwhile, or it cannot be written. No search.yaml is left then.
    """
    try:
        with writing():
            return _begun(planned, publish)
    except BaseException:  # Ctrl-C too: a search that never began leaves nothing that looks like one; it goes on
        (planned.config.folder / "search.yaml").unlink(missing_ok=True)
        raise


def _begun(planned: Plan, publish: Callable[[], None]) -> Held:
    config = planned.config
    _save(config)
    warm_start.save(config.folder, planned.warm.trials)
    study, store = create(
        config.place,
        _sampler(planned),
        planned.objective,
        planned.mode,
        others=planned.objectives[1:],
        earlier=warm_start.as_shown(planned.warm.trials, planned.space, planned.mode),
        url=config.study,
        new=True,
    )
    try:
        publish()
        _remember(study, planned)
        study.commit()
    except BaseException:  # Ctrl-C too: nobody else can free the lock in a notebook; it goes on
        try:
            with suppress(StoreError):
                store.close()
        finally:
            if isinstance(config.place, Remote):
                with suppress(OSError):
                    remove_tree(config.place)
        raise
    return Held(study, store, study.about)


def _remember(study: SearchStudy, planned: Plan) -> None:
    config, space = planned.config, planned.space
    study.remember(
        {
            "id": uuid.uuid4().hex,
            "config": config.model_dump(mode="json", by_alias=True),
            "first": planned.first,
            "searched": {p.name: distribution_to_json(p.distribution) for p in space.parameters},
            "fixed": space.unsearched(),
            "files": digests(planned.source.modules),
            "tracking_uri": shown(os.environ.get(URI, "")),
        }
    )
    for point in planned.first:
        study.enqueue(point)


def take_up(place: Place, given: Mapping[str, Any]) -> tuple[Plan, Held]:
    """The search at `place`, whose files are at hand, to go on with the options that are `given` anew.

    Raises:
        UsageError: There is none, another process runs it, something that it needs is not there any more, or it
            cannot be written.
    """
    url = find_store(place, given.get("study", ""))
    with writing():
        store = open_store(place, url)
        try:
            return _taken_up(place, store, {**given, "study": url})
        except BaseException:  # Ctrl-C too: nobody else can free the lock in a notebook; it goes on
            store.close()
            raise


@contextmanager
def writing() -> Iterator[None]:
    """A disk that is full or read-only, or a bucket that is away, is told in a line.

    Raises:
        UsageError: It is.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error


def _taken_up(place: Place, store: Store, given: Mapping[str, Any]) -> tuple[Plan, Held]:
    about = remembered(store.storage, place)
    config = config_of(about, place, given)
    check_tracking(config, tracked(about))
    source = find_task(config.task)
    space, notes = _space(about, space_of(config, source))
    planned = checked(config, source, space)
    objective = about["objective"], about["mode"]
    if objective != (planned.objective, planned.mode):
        raise UsageError(
            f"the task must have the objective that {place.name} began with, {' '.join(objective)}, "
            f"but has {planned.objective} {planned.mode}."
        )
    earlier, lost = _earlier(planned)
    notes += lost
    study = SearchStudy(
        store.storage,
        config.name,
        _sampler(planned),
        planned.objective,
        planned.mode,
        planned.objectives[1:],
        earlier,
        store.commit,
    )
    for point in about["first"]:
        study.enqueue(point)  # in case that the search died before it had
    remove(config.folder / "ray")
    files = digests(source.modules)
    if changed := _changed(about["files"], files):
        kept = _set_aside(config.folder / "code", config.place, source.modules)
        study.remember({**study.about, "files": files})
        notes.append(f"{', '.join(changed)} changed since {place.name} last ran, and trials go on with the new{kept}")
    tracking_uri = shown(tracked(about)[URI])
    if not config.tracking_uri and tracking_uri != about["tracking_uri"]:
        notes.append(f"MLflow is at {tracking_uri} now: runs begin anew there")
    task = about["config"]["task"] if isinstance(place, Remote) else config.task  # not of a copy that goes away
    _save(config.model_copy(update={"task": task}))
    study.commit()
    trials = study.trials()
    ended = sum(trial.state.is_finished() for trial in trials)
    notes.append(f"search {config.name} goes on: {ended} trials have ended, {len(trials) - ended} have begun")
    return planned, Held(study, store, about, tuple(notes))


def _earlier(planned: Plan) -> tuple[list[FrozenTrial], list[str]]:
    """The trials of earlier searches that the sampler knows, and a line if they cannot be read any more."""
    if not planned.config.warm_start:
        return [], []
    try:
        return warm_start.as_shown(warm_start.load(planned.config.folder), planned.space, planned.mode), []
    except (OSError, ValueError, KeyError, TypeError):
        return [], [f"{warm_start.FILE} cannot be read: the sampler knows nothing of earlier searches any more"]


def _sampler(planned: Plan) -> Callable[[int], BaseSampler]:
    return partial(make_sampler, planned.config.sampler, planned.config.seed)


def _space(about: Mapping[str, Any], now: Space) -> tuple[Space, list[str]]:
    """The space that the search began with, and a line for each parameter of which the task says otherwise `now`."""
    searched = {name: json_to_distribution(text) for name, text in about["searched"].items()}
    space = pinned(now.config_class, searched, about["fixed"])
    goes_on, declared = _told(space), _told(now)
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


def _told(space: Space) -> dict[str, str]:
    """What is said of each parameter: its range, or its value."""
    ranges = {parameter.name: f"searched in {parameter}" for parameter in space.parameters}
    return {**ranges, **{name: str(value) for name, value in space.unsearched().items()}}


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _save(config: SearchConfig) -> None:
    """Write search.yaml, all of it or nothing: it says where the study is."""
    write_whole(config.folder / "search.yaml", dump(config))


def _set_aside(code: Path, place: Place, modules: Sequence[Path]) -> str:
    """Give the copy of the task's files, which trials ran so far, another name, unless it is what they run now."""
    if not code.exists() or any(path.is_relative_to(code.resolve()) for path in modules):
        return ""
    older = next(path for n in range(1, 1000) if not (path := code.with_name(f"code-{n}")).exists())
    code.rename(older)
    return f" code; what ran so far is in {place / older.name}"
