"""The trials of earlier searches that the sampler of a new search sees. They are no trials of the new search.

They lie in a file of the search's folder, so that the search has the same ones when it is resumed.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState, create_trial

from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.folder.locations import list_searches
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Space
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome, intermediate_values
from searchlight.search.tracking.errors import error_message
from searchlight.search.tracking.run_content import CONFIRM, NOT_IN_A_KEY
from searchlight.search.tracking.runs import iterate_runs
from searchlight.search.tracking.uri import redact
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath, parse_path
from searchlight.trainables.flatten import flatten

FILE = "warm-start.json"
MLFLOW = "mlflow:"
LARGEST = 1e308  # SQL stores of MLflow have no infinity, and keep the largest number instead
OUTCOMES = {"FINISHED": "completed", "KILLED": "pruned", "FAILED": "failed"}  # of runs that other tools wrote


@dataclass(frozen=True)
class SourceTrial:
    """A trial of an earlier search: its outcome, its whole config by dotted name, its finite objectives by epoch."""

    outcome: str
    config: dict[str, Any]
    values: dict[int, float]


@dataclass(frozen=True)
class PriorTrial:
    """An earlier trial in the space of this search: completed, pruned or diverged, with the objective by epoch."""

    outcome: str
    point: dict[str, Any]
    values: dict[int, float]


@dataclass(frozen=True)
class WarmStart:
    """What the sources have: their trials, the best point of each source, and a line about each for the user."""

    trials: tuple[PriorTrial, ...] = ()
    best: tuple[dict[str, Any], ...] = ()
    lines: tuple[str, ...] = ()


def load_warm_start(sources: Sequence[str], space: Space, objective: Objective, tracking_uri: str) -> WarmStart:
    """Load the trials of `sources`, folders of searches or "mlflow:EXPERIMENT", that fit `space`.

    Raises:
        UsageError: A source cannot be read, has another objective, or has no trial that fits.
    """
    trials, best = list[PriorTrial](), list[dict[str, Any]]()
    lines, problems = list[str](), list[str]()
    for source in sources:
        try:
            if source.startswith(MLFLOW):
                found = _load_experiment_trials(source.removeprefix(MLFLOW), objective.metric, tracking_uri)
            else:
                found = _load_search_trials(parse_path(source), objective)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        fitting, why_not = select_fitting(space, found)
        name = source if source.startswith(MLFLOW) else parse_path(source).name
        line = f"{len(fitting)} of {len(found)} trials of {name} fit{': ' if why_not else ''}{', '.join(why_not)}"
        if not fitting:
            problems.append(f"--warm-start {name} must have trials that fit this search, but has none. {line}.")
        lines.append(line)
        trials += fitting
        if judged := [trial for trial in fitting if trial.outcome != "diverged" and trial.values]:
            best.append(objective.best(judged, key=lambda t: objective.best(t.values.values())).point)
    if problems:
        raise UsageError(*problems)
    return WarmStart(tuple(trials), tuple(best), tuple(lines))


def select_fitting(space: Space, found: Sequence[SourceTrial]) -> tuple[list[PriorTrial], list[str]]:
    """Return the trials whose values lie in `space`, and why the others do not, as "6 have lr outside 1e-5..1e-2".

    A trial must have the value of each parameter that is fixed here, except for the seed. If the parameter has one
    value in all trials, such as the number of epochs, they fit with another value too, and a line says so.
    """
    constants = {name: value for name, value in space.fixed_values().items() if name != "seed"}
    readers = {name: space.value_parser(name) for name in [*(p.name for p in space.parameters), *constants]}
    found = [replace(trial, config=_group_by_field(trial.config, constants)) for trial in found]
    seen = {name: {str(t.config[name]): t.config[name] for t in found if name in t.config} for name in constants}
    fitting: list[PriorTrial] = []
    misfits: Counter[tuple[str, str]] = Counter()
    for trial in found:
        varied = [name for name in constants if len(seen[name]) > 1 and name in trial.config]
        other = [name for name in varied if _parse_value(readers[name], trial.config[name]) != constants[name]]
        point, misfit = _parse_point(space, readers, trial.config)
        if trial.outcome in ("failed", "infeasible"):  # this machine or this search may have other limits
            misfits[trial.outcome, trial.outcome] += 1
        elif not trial.values and trial.outcome != "diverged":
            misfits["reported nothing", "reported nothing"] += 1
        elif misfit or other:
            what = misfit or f"{other[0]} other than {constants[other[0]]}"
            misfits[f"has {what}", f"have {what}"] += 1
        else:
            outcome = trial.outcome if trial.outcome in ("completed", "diverged") else "pruned"
            fitting.append(PriorTrial(outcome, point, dict(trial.values)))
    reasons = [f"{count} {one if count == 1 else many}" for (one, many), count in misfits.items()]
    for name, values in seen.items():
        for value in values.values() if len(values) == 1 else ():
            if _parse_value(readers[name], value) != constants[name]:
                reasons.append(f"all had {name}={value}, here {constants[name]}")
    return fitting, reasons


def _group_by_field(config: Mapping[str, Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat `config` with the values of each dict field combined again."""
    groups = {
        name: {key.removeprefix(f"{name}."): value for key, value in config.items() if key.startswith(f"{name}.")}
        for name, value in constants.items()
        if isinstance(value, dict)
    }
    return {**config, **{name: group for name, group in groups.items() if group}}


def save(folder: Path, trials: Sequence[PriorTrial]) -> None:
    """Write `trials` to the folder of a search."""
    if trials:
        write_atomic(folder / FILE, json.dumps([asdict(trial) for trial in trials]))


def load(folder: Path) -> list[PriorTrial]:
    """Return what `save` wrote.

    Raises:
        OSError, ValueError, KeyError, TypeError: The file is missing or incomplete.
    """
    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [PriorTrial(t["outcome"], t["point"], {int(epoch): v for epoch, v in t["values"].items()}) for t in kept]


def as_sampler_trials(trials: Sequence[PriorTrial], space: Space, objective: Objective) -> list[FrozenTrial]:
    """Return `trials` as a sampler sees them: older than the search's own trials, whose numbers begin with 0."""
    distributions = {parameter.name: parameter.distribution for parameter in space.parameters}
    frozen_trials = []
    for number, trial in enumerate(trials, start=-len(trials)):
        completed, names = trial.outcome == "completed", [name for name in trial.point if name in distributions]
        frozen = create_trial(
            state=TrialState.COMPLETE if completed else TrialState.PRUNED,
            value=objective.best(trial.values.values()) if completed else None,
            params={name: trial.point[name] for name in names},
            distributions={name: distributions[name] for name in names},
            intermediate_values=trial.values,
            user_attrs={"outcome": trial.outcome},
            constraints={"diverged": 1.0} if trial.outcome == "diverged" else None,
        )
        frozen.number = number
        frozen_trials.append(frozen)
    return frozen_trials


def _parse_point(
    space: Space, readers: Mapping[str, Callable[[Any], Any]], config: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the searched parameters of `config`, or a description of the first one that does not fit."""
    known, point = space.fixed_values(), dict[str, Any]()
    for parameter in (parameter for parameter in space.parameters if parameter.is_active(known)):
        if parameter.name not in config:
            return {}, f"no {parameter.name}"
        value = _parse_value(readers[parameter.name], config[parameter.name])
        if not parameter.contains(value):
            return {}, f"{parameter.name} outside {parameter}"
        known[parameter.name] = point[parameter.name] = value
    return point, ""


def _parse_value(reader: Callable[[Any], Any], value: Any) -> Any:
    """Return the parsed value. An invalid `value` stays as it is: it is in no range, and equals no fixed value."""
    try:
        return reader(value)
    except UsageError:
        return value


def _load_search_trials(folder: StoragePath, objective: Objective) -> list[SourceTrial]:
    try:
        known = None if folder.is_dir() else list_searches(folder.parent)
    except OSError as error:  # of a bucket
        raise UsageError(f"--warm-start {folder.name} must be a search that can be read, but {error}.") from error
    if known is not None:
        raise UsageError(
            f"--warm-start must be a search, its folder or mlflow:EXPERIMENT, but there is no {folder}."
            + (f" {suggest_nearest(folder.name, known)}" if known else "")
        )
    try:
        record = load_search(folder)
    except UsageError as error:
        raise UsageError(*(f"--warm-start {folder.name}: {problem}" for problem in error.problems)) from error
    if (theirs := record.objective) != objective:
        raise UsageError(
            f"--warm-start {folder.name} must have searched for the {objective.mode} of {objective.metric}, but did "
            f"for the {theirs.mode} of {theirs.metric}. Leave it out."
        )
    return [
        SourceTrial(get_outcome(t), flatten(t.user_attrs.get("config", {})), dict(intermediate_values(t)))
        for t in record.trials
    ]


def _load_experiment_trials(name: str, objective: str, tracking_uri: str) -> list[SourceTrial]:
    path = Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("sqlite:///") and not path.is_file():  # MLflow would make one
        raise UsageError(f"--warm-start mlflow:{name} must be in a store that exists, but there is no {path}.")
    from mlflow.tracking import MlflowClient

    key = NOT_IN_A_KEY.sub("_", objective)
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        experiment = client.get_experiment_by_name(name)
        known = [] if experiment else [known.name for known in client.search_experiments()]
        order = ["attributes.start_time ASC"]
        runs = list(iterate_runs(client, experiment.experiment_id, order_by=order)) if experiment else []
        runs = [run for run in runs if run.data.params and not _is_parent(run) and not _is_confirming(run)]
        found = [_parse_run(client, run, key) for run in runs]
    except Exception as error:  # MLflow raises its own, urllib's and SQLAlchemy's
        raise UsageError(
            f"--warm-start mlflow:{name} must be readable, but {redact(tracking_uri)} is not: {error_message(error)}"
        ) from error
    if experiment is None:
        raise UsageError(
            f"--warm-start mlflow:{name} must be an experiment of {redact(tracking_uri)}, but there is none of that "
            f"name. {suggest_nearest(name, known)}"
        )
    metrics = {metric for run in runs for metric in run.data.metrics}
    if key not in metrics:
        raise UsageError(
            f"--warm-start mlflow:{name} must have runs with the metric {objective!r}, but has none. "
            + (suggest_nearest(objective, metrics) if metrics else "It has no metric at all.")
        )
    return found


def _is_parent(run: Any) -> bool:
    """Return whether `run` is the parent of the trials of a search. Parents of other tools have no parameters."""
    return "search_id" in run.data.tags and "trial_id" not in run.data.tags


def _is_confirming(run: Any) -> bool:
    """Return whether `run` is a confirming run. A sampler would count it as another trial."""
    return bool(run.data.tags.get("purpose") == CONFIRM)


def _parse_run(client: Any, run: Any, key: str) -> SourceTrial:
    history = client.get_metric_history(run.info.run_id, key) if key in run.data.metrics else []
    by_step = {point.step: point.value for point in sorted(history, key=lambda point: (point.timestamp, point.step))}
    finite = {step: value for step, value in sorted(by_step.items()) if abs(value) < LARGEST}
    tags = run.data.tags
    outcome = tags.get("outcome") or OUTCOMES.get(run.info.status, "interrupted")
    if "trial_id" not in tags:
        outcome = outcome if len(finite) == len(by_step) else "diverged"
        finite = dict(enumerate(finite.values(), start=1))  # another tool's steps may be updates: they are counted
    return SourceTrial(outcome, dict(run.data.params), finite)
