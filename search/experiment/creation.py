"""Creates the study and the files of a new search."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from optuna.distributions import distribution_to_json

from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import to_yaml
from searchlight.search.errors import StoreError, UsageError
from searchlight.search.experiment import warm_start
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.storage.backend import StudyStore
from searchlight.search.study.study import SearchStudy, create_study
from searchlight.search.tracking import provenance
from searchlight.search.tracking.uri import URI, redact
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import remove_tree


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


def create_search(planned: SearchPlan, publish: Callable[[], None] = lambda: None) -> OpenStudy:
    """Create a new search in its folder, with all that a resume needs before its first trial.

    `publish` copies the files of the folder to where the search lies.

    Raises:
        UsageError: The name was taken meanwhile, or the folder cannot be written. No search.yaml is left.
    """
    config = planned.config
    try:
        with storage_errors():
            write_search_yaml(planned, config.task)
            warm_start.save(config.local_path, planned.warm.trials)
            earlier = warm_start.as_sampler_trials(planned.warm.trials, planned.space, planned.objective)
            sampler = sampler_factory(config.sampler, config.seed)
            study, store = create_study(
                config.path, sampler, planned.objectives, earlier=earlier, url=config.study, new=True
            )
            try:
                publish()
                _save_metadata(study, planned)
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


def _save_metadata(study: SearchStudy, planned: SearchPlan) -> None:
    space = planned.space
    study.save_metadata(
        {
            "id": uuid.uuid4().hex,
            "config": planned.options,
            "first": planned.first,
            "searched": {p.name: distribution_to_json(p.distribution) for p in space.parameters},
            "fixed": space.fixed_values(),
            "units": dict(planned.source.task_class.units) if planned.source.task_class else {},
            "files": provenance.compute_digests(planned.source.modules),
            "tracking_uri": redact(os.environ.get(URI, "")),
        }
    )
    for point in planned.first:
        study.enqueue(point)


def write_search_yaml(planned: SearchPlan, task: str) -> None:
    """Write all of search.yaml or nothing: it says where the study is."""
    config = planned.config.model_copy(update={"task": task})
    write_atomic(config.local_path / "search.yaml", to_yaml(config))
