"""What earlier searches found, for the sampler of a new one. It is shown to the sampler, and is no trial of the search.

It lies in a file of the search's folder, so that a search that is taken up again shows the same.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState, create_trial

from search.config.objectives import Objective
from search.config.search_space import Space
from search.errors import UsageError
from search.experiment.warm_start_sources import SourceTrial, load_source_trials
from search.storage.atomic_file import write_atomic
from trainables.filesystem.paths import parse_path

FILE = "warm-start.json"


@dataclass(frozen=True)
class PriorTrial:
    """An earlier trial in the space of this search: completed, pruned or diverged, with the objective by epoch."""

    outcome: str
    point: dict[str, Any]
    values: dict[int, float]


@dataclass(frozen=True)
class WarmStart:
    """What several sources gave: trials, the best point of each source, and a line about each for the user."""

    trials: tuple[PriorTrial, ...] = ()
    best: tuple[dict[str, Any], ...] = ()
    lines: tuple[str, ...] = ()


def load_warm_start(sources: Sequence[str], space: Space, objective: Objective, tracking_uri: str) -> WarmStart:
    """What `sources` know about `space`.

    Raises:
        UsageError: A source cannot be read, was after something else, or has no trial that fits.
    """
    trials: list[PriorTrial] = []
    best: list[dict[str, Any]] = []
    lines, problems = list[str](), list[str]()
    for source in sources:
        try:
            found = load_source_trials(source, objective, tracking_uri)
        except UsageError as error:
            problems.extend(error.problems)
            continue
        fitting, why_not = select_fitting(space, found)
        name = source if source.startswith("mlflow:") else parse_path(source).name
        told = f"{len(fitting)} of {len(found)} trials of {name} fit{': ' if why_not else ''}{', '.join(why_not)}"
        if not fitting:
            problems.append(f"--warm-start {name} must have trials that fit this search, but has none. {told}.")
        lines.append(told)
        trials += fitting
        best += _find_best_points(fitting, objective)
    if problems:
        raise UsageError(*problems)
    return WarmStart(tuple(trials), tuple(best), tuple(lines))


def select_fitting(space: Space, found: Sequence[SourceTrial]) -> tuple[list[PriorTrial], list[str]]:
    """The trials whose values lie in `space`, and why the others do not, as in "6 have lr outside 1e-5..1e-2".

    A parameter that is fixed here must have that value in them; if it never varied in all that was found, as the
    number of epochs, the trials fit with another value too, which is told. The seed does not matter.
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
        if trial.outcome == "failed":
            misfits["failed", "failed"] += 1
        elif not trial.values and trial.outcome != "diverged":
            misfits["reported nothing", "reported nothing"] += 1
        elif misfit or other:
            what = misfit or f"{other[0]} other than {constants[other[0]]}"
            misfits[f"has {what}", f"have {what}"] += 1
        else:
            outcome = trial.outcome if trial.outcome in ("completed", "diverged") else "pruned"
            fitting.append(PriorTrial(outcome, point, dict(trial.values)))
    told = [f"{count} {one if count == 1 else many}" for (one, many), count in misfits.items()]
    for name, values in seen.items():
        for value in values.values() if len(values) == 1 else ():
            if _parse_value(readers[name], value) != constants[name]:
                told.append(f"all had {name}={value}, here {constants[name]}")
    return fitting, told


def _group_by_field(config: Mapping[str, Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    """Flat `config` with the values of a field that is a dict put together again."""
    groups = {
        name: {key.removeprefix(f"{name}."): value for key, value in config.items() if key.startswith(f"{name}.")}
        for name, value in constants.items()
        if isinstance(value, dict)
    }
    return {**config, **{name: group for name, group in groups.items() if group}}


def save(folder: Path, trials: Sequence[PriorTrial]) -> None:
    """Keep `trials` in the folder of a search."""
    if trials:
        write_atomic(folder / FILE, json.dumps([asdict(trial) for trial in trials]))


def load(folder: Path) -> list[PriorTrial]:
    """What `save` kept.

    Raises:
        OSError, ValueError, KeyError, TypeError: It is not there, or not whole.
    """
    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [PriorTrial(t["outcome"], t["point"], {int(epoch): v for epoch, v in t["values"].items()}) for t in kept]


def as_sampler_trials(trials: Sequence[PriorTrial], space: Space, objective: Objective) -> list[FrozenTrial]:
    """`trials` as a sampler sees them: older than all of the search's own, whose numbers begin with 0."""
    distributions = {parameter.name: parameter.distribution for parameter in space.parameters}
    shown = []
    for number, trial in enumerate(trials, start=-len(trials)):
        completed, names = trial.outcome == "completed", [name for name in trial.point if name in distributions]
        frozen = create_trial(
            state=TrialState.COMPLETE if completed else TrialState.PRUNED,
            value=objective.best(trial.values.values()) if completed else None,
            params={name: trial.point[name] for name in names},
            distributions={name: distributions[name] for name in names},
            intermediate_values=trial.values,
            constraints={"diverged": 1.0} if trial.outcome == "diverged" else None,
        )
        frozen.number = number
        shown.append(frozen)
    return shown


def _parse_point(
    space: Space, readers: Mapping[str, Callable[[Any], Any]], config: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The searched parameters of `config`, or what is wrong with the first that does not fit."""
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
    """`value` as it is if it cannot be read: it then is in no range, and no value of ours."""
    try:
        return reader(value)
    except UsageError:
        return value


def _find_best_points(trials: Sequence[PriorTrial], objective: Objective) -> list[dict[str, Any]]:
    judged = [trial for trial in trials if trial.outcome != "diverged" and trial.values]
    return [objective.best(judged, key=lambda t: objective.best(t.values.values())).point] if judged else []
