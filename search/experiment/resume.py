"""Opens the study of a search to resume it where its driver left it, and says what has changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution, json_to_distribution
from optuna.trial import FrozenTrial

from searchlight.search.config.loading import build_resume_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.checkpoint_manager import CHECKPOINTS
from searchlight.search.execution.cluster.local_machine import (
    leave_out_fp16,
    may_train_on_gpus,
    uses_existing_cluster,
)
from searchlight.search.execution.cluster.session_cleanup import remove
from searchlight.search.experiment import warm_start
from searchlight.search.experiment.code_copy import record_code
from searchlight.search.experiment.creation import OpenStudy, storage_errors, write_search_yaml
from searchlight.search.experiment.plan import SearchPlan, build_plan, build_space
from searchlight.search.folder.locations import check_writable
from searchlight.search.formatting import log_model_command, pluralize
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Space, restore_space
from searchlight.search.storage.backend import StudyStore
from searchlight.search.storage.database import database_errors
from searchlight.search.storage.study_store import find_store, open_store
from searchlight.search.study.metadata import load_metadata
from searchlight.search.study.study import SearchStudy
from searchlight.search.task_source import load_task_source
from searchlight.search.tracking.uri import URI, check_tracking, redact, tracking_environment
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.precision import Precision


def open_search(place: StoragePath, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    """Open the search at `place`, whose files are on this disk, to resume it with the overridden options `given`.

    Raises:
        UsageError: There is no such search, another process runs it, something that it needs is missing, or its
            folder cannot be written.
    """
    url = find_store(place, given.get("study", ""))
    with storage_errors():
        store = open_store(place, url)
        try:
            with database_errors(url):
                return _restore_search(place, store, {**given, "study": url})
        except BaseException:  # also Ctrl-C: in a notebook, nothing else could release the lock
            store.close()
            raise


def _restore_search(place: StoragePath, store: StudyStore, given: Mapping[str, Any]) -> tuple[SearchPlan, OpenStudy]:
    about = load_metadata(store.storage, place)
    trials = store.storage.get_all_trials(store.storage.get_study_id_from_name(place.name), deepcopy=False)
    unfinished = [str(trial.number) for trial in trials if not trial.state.is_finished()]
    check_writable(place / CHECKPOINTS, unfinished)  # it may be another disk than that of the journal
    planned, notes = _restore_plan(place, about, given)
    config = planned.config
    earlier: list[FrozenTrial] = []
    if config.warm_start:
        try:
            earlier = warm_start.as_sampler_trials(warm_start.load(config.local_path), planned.space, planned.objective)
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"{warm_start.FILE} cannot be read: the sampler continues without earlier searches")
    sampler = sampler_factory(config.sampler, config.seed)
    study = SearchStudy(store.storage, config.name, sampler, planned.objectives, earlier, store.commit)
    for point in about["first"]:
        study.enqueue(point)  # the search may have died before it enqueued them
    remove(config.local_path / "ray")
    # Else the next resume would delete other checkpoints, and leave a confirmation that was asked for.
    if lasting := {name: getattr(config, name) for name in ("keep_checkpoints", "confirm") if name in given}:
        study.save_metadata({**study.metadata, "config": {**about["config"], **lasting}})
    trials = study.get_trials()
    if config.makes_model or not planned.is_complete(trials):  # else nothing runs the task any more
        notes += record_code(study, planned.source, config)
    if about["config"].get("log_model") and not config.makes_model:  # an option of older versions
        notes.append(f"--log-model is gone: log the model after the search with {log_model_command(place, '')}")
    tracking_uri = redact(tracking_environment(about)[URI])
    if not config.tracking_uri and tracking_uri != about["tracking_uri"]:
        notes.append(f"MLflow is at {tracking_uri} now: new runs are created there")
    # The task may be in a working copy, which is removed at the end.
    write_search_yaml(planned, config.task if config.local_path == place else about["config"]["task"])
    study.commit()
    searched = study.get_searched_trials()
    ended, runs = sum(trial.state.is_finished() for trial in searched), len(trials) - len(searched)
    told = f"search {config.name} continues: {ended} trials have ended, {len(searched) - ended} have not"
    notes.append(f"{told}, {pluralize(runs, 'confirming run')} as well" if runs else told)
    return planned, OpenStudy(study, store, tuple(notes))


def _restore_plan(
    place: StoragePath, about: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[SearchPlan, list[str]]:
    """Return the plan of a search that is resumed, and a line for each parameter that its task declares otherwise."""
    config = build_resume_config(about, place, given)
    check_tracking(config, tracking_environment(about))
    source = load_task_source(config.task)
    declared = build_space(config, source)
    may_lack_gpus = uses_existing_cluster() or not may_train_on_gpus(config)
    if may_lack_gpus and Precision.FP16 not in _list_precisions(about):  # the search left it out, too
        declared, _ = leave_out_fp16(config, declared)
    space, notes = _resolve_space(about, declared)
    planned = build_plan(config, source, space)
    before, current = Objective(about["objective"], about["mode"]), planned.objective
    if before != current:
        raise UsageError(
            f"the task must have the objective that {place.name} began with, {before.metric} {before.mode}, "
            f"but has {current.metric} {current.mode}."
        )
    return planned, notes


def _list_precisions(about: Mapping[str, Any]) -> Sequence[Any]:
    """Return the precisions that the search began with, searched or fixed."""
    if "precision" not in about["searched"]:
        return [about["fixed"].get("precision")]
    distribution = json_to_distribution(about["searched"]["precision"])
    return distribution.choices if isinstance(distribution, CategoricalDistribution) else []


def _resolve_space(about: Mapping[str, Any], current: Space) -> tuple[Space, list[str]]:
    searched = {name: json_to_distribution(text) for name, text in about["searched"].items()}
    space = restore_space(current.config_class, searched, about["fixed"])
    kept, declared = _describe_parameters(space), _describe_parameters(current)
    known = searched.keys() | about["fixed"].keys()
    notes = []
    for name in sorted(known | kept.keys()):
        if name not in kept:
            notes.append(f"{name} was {about['fixed'][name]}: the task has no such parameter any more")
        elif name not in known:
            notes.append(f"{name} is {kept[name]}: the task had no such parameter before")
        elif kept[name] != declared[name]:
            notes.append(f"{name} stays {kept[name]}, as before, and is not {declared[name]}")
    return space, notes


def _describe_parameters(space: Space) -> dict[str, str]:
    """Return the range or the value of each parameter as text."""
    ranges = {parameter.name: f"searched in {parameter}" for parameter in space.parameters}
    return {**ranges, **{name: str(value) for name, value in space.fixed_values().items()}}
