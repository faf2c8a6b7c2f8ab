"""Checks of a command before it is applied: what it would change, or why it is refused."""

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from searchlight.search.errors import UsageError
from searchlight.search.formatting import format_trials, join_words, pluralize
from searchlight.search.samplers.factory import TAKING_BELIEFS
from searchlight.search.space.search_space import Space
from searchlight.search.steering.allowed_space import check_rest, list_regions, parse_region_of
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.operations import OPERATIONS
from searchlight.search.steering.region import Region
from searchlight.search.steering.state import SteeringState, build_state, find_subjects, find_undone

OF_NEXT_TRIALS = ("try", "believe", "avoid", "narrow", "budget", "undo")  # operations that change which trials begin


@dataclass(frozen=True)
class SearchView:
    """What a check needs to know of a search.

    Attributes:
        trials: All trials by number, enqueued ones included, without confirming runs.
        limit: The number of trials that the search may start.
        is_over: Whether no trial of it continues any more.
        room: How many trials the cluster can run at a time.
        resumed_at: The number of commands when the present driver began.
        confirms: Whether confirming runs follow its trials.
        extends: Whether trials can train longer than planned.
        losing: Numbers of trials and confirming runs that would begin again if they stopped: they have no checkpoint.
        confirming_runs: Numbers of trials that are confirming runs.
        takes_beliefs: Whether the sampler follows what commands say about parameters.
        list_tried: Returns the numbers of the trials of an author's points.
        count_gpu_hours: Returns the GPU-hours of these trials.
        hours: What `count_gpu_hours` counts: without GPUs, these are "worker-hours".
    """

    space: Space
    trials: Mapping[int, FrozenTrial]
    log: Sequence[LogEntry]
    limit: int
    is_over: bool = False
    room: float = math.inf
    resumed_at: int = 0
    confirms: bool = True
    extends: bool = False
    losing: Sequence[int] = ()
    confirming_runs: Container[int] = ()
    takes_beliefs: bool = False
    list_tried: Callable[[str], Sequence[int]] = lambda author: ()
    count_gpu_hours: Callable[[str], float] = lambda author: 0.0
    hours: str = "GPU-hours"

    @property
    def state(self) -> SteeringState:
        return build_state(self.log)

    @property
    def begun(self) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self.trials.values())


def check_command(command: Command, view: SearchView) -> Answer:
    """Return the answer to a command, which is accepted.

    Raises:
        UsageError: The command is refused.
    """
    check_revision(command, view.log)
    if command.operation in ("try", "keep", "extend"):
        _check_quota(command, view)
    effect, *warnings = CHECKS[command.operation](command.args, view)
    if view.is_over and command.operation in OF_NEXT_TRIALS:
        warnings.append("the search has ended: no trial begins any more")
    return Answer(True, effect, warnings, OPERATIONS[command.operation].undo)


def check_revision(command: Command, log: Sequence[LogEntry]) -> None:
    """Check that no later command than those that the author knew decides on the same.

    Raises:
        UsageError: One does.
    """
    if command.revision is None:
        return
    if not 0 <= command.revision <= len(log):
        raise UsageError(f"--revision must be 0 to {len(log)}, but got {command.revision}.")
    own = find_subjects(command, log)
    for entry in log[command.revision :]:
        if entry.answer.accepted and (both := find_subjects(entry.command, log) & own):
            raise UsageError(
                f"the command must know what was decided before, but {', '.join(sorted(both))} was decided by "
                f"{entry.command.author} ({entry.command.operation}, revision {entry.revision}). Look at the log and "
                "send it again."
            )


def _check_quota(command: Command, view: SearchView) -> None:
    """Check that an author has points and GPU-hours left. The driver counts, so that no two clients count alike."""
    tried = sum(each.author == command.author for each in view.state.find("try"))
    if command.operation == "try" and command.most is not None and tried >= command.most:
        raise UsageError(
            f"{command.author} must try at most {pluralize(command.most, 'point')}, but has tried {tried} already."
        )
    taken = view.count_gpu_hours(command.author)
    if command.gpu_hours is not None and taken >= command.gpu_hours:
        raise UsageError(
            f"trials of {command.author} must take at most {command.gpu_hours:g} {view.hours}, but took {taken:.3g}."
        )
    own = view.list_tried(command.author)
    if command.gpu_hours is not None and (others := [n for n in command.args.get("trials", ()) if n not in own]):
        raise UsageError(
            f"{command.author} must {command.operation} trials of its own points only, because others do not count in "
            f"its {view.hours}, but got {format_trials(others)}."
        )


def _find_trials(numbers: Sequence[int], view: SearchView) -> list[FrozenTrial]:
    """Return trials that have not ended.

    Raises:
        UsageError: There is no such trial, or it has ended.
    """
    if not numbers:
        raise UsageError("a trial must be named, but none is. Give numbers such as 3 7.")
    for number in numbers:
        if number not in view.trials:
            last = max(view.trials, default=None)
            known = "the search has none yet" if last is None else f"the last one is {last}"
            known = "it is a confirming run" if number in view.confirming_runs else known
            raise UsageError(f"trial {number} must be one of the search, but {known}.")
        if (state := view.trials[number].state).is_finished():
            outcome = view.trials[number].user_attrs.get("outcome", state.name.lower())
            raise UsageError(f"trial {number} must be unfinished, but is {outcome}.")
    return [view.trials[number] for number in numbers]


def _check_stop(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if waiting := [trial.number for trial in _find_trials(args["trials"], view) if trial.state == TrialState.WAITING]:
        raise UsageError(f"{_name_trials(waiting)} must have begun, but waits in the queue of points to try.")
    if stopping := sorted({*args["trials"]} & {*view.state.get_reasons("stop")}):
        raise UsageError(f"{_name_trials(stopping)} must not be stopping already, but a command has stopped it.")
    kept = sorted({*args["trials"]} & {*view.state.get_reasons("keep")})
    warnings = [f"trial {number} was to be kept" for number in kept]
    return [f"{_name_trials(args['trials'])} ends at its next window, as pruned", *warnings]


def _check_keep(args: Mapping[str, Any], view: SearchView) -> list[str]:
    _find_trials(args["trials"], view)
    if stopped := sorted({*args["trials"]} & {*view.state.get_reasons("stop")}):
        raise UsageError(f"{_name_trials(stopped)} must not be stopped already, but a command has stopped it.")
    return [f"{_name_trials(args['trials'])} trains to its full budget, whatever the scheduler says"]


def _check_extend(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if not view.extends:
        raise UsageError("extend must be for a search over a Task with --fidelity epochs, but this one is not.")
    if args["epochs"] < 1:
        raise UsageError(f"--epochs must be above 0, but got {args['epochs']}.")
    keeping = _check_keep(args, view)[0].partition(", whatever")[0]
    warnings = ["what the task computes from its number of epochs, such as a learning rate, follows the new number"]
    return [f"{keeping}, and {pluralize(args['epochs'], 'epoch')} more", *warnings]


def _check_try(args: Mapping[str, Any], view: SearchView) -> list[str]:
    point = args["point"]
    told = ", ".join(f"{name}={value}" for name, value in point.items())
    number = next((n for n, t in view.trials.items() if t.system_attrs.get("fixed_params", t.params) == point), None)
    if number is not None:
        raise UsageError(f"a point must be new, but trial {number} has {told}.")
    warnings = []
    if view.begun >= view.limit:
        warnings.append(f"all {view.limit} trials have begun: it waits until a budget command raises --trials")
    return [f"the next trial has {told}" + (", and trains to its full budget" if args.get("full") else ""), *warnings]


def _check_believe(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if not view.takes_beliefs:
        takes = join_words(TAKING_BELIEFS, "or")
        raise UsageError(f"believe must be for --sampler {takes} with one objective: use try or narrow here.")
    if not args["point"]:
        raise UsageError("a value must be given, such as lr=3e-4, but none is.")
    told = ", ".join(f"{name}={join_words([*map(str, values)], 'or')}" for name, values in args["point"].items())
    pairs = [(name, value) for name, values in args["point"].items() for value in values]
    if args.get("drop"):
        held = [(name, belief.center) for name, beliefs in view.state.get_beliefs().items() for belief in beliefs]
        if unknown := [f"{name}={value}" for name, value in pairs if (name, value) not in held]:
            raise UsageError(f"a value to drop must be one that is believed in, but got {' and '.join(unknown)}.")
        return [f"{told} is believed no more"]
    avoided = [region for region in list_regions(view.state, view.space) if _has_some(region, args["point"])]
    warnings = [f"a region to avoid has some of these, {region}: no trial is proposed there" for region in avoided]
    return [f"half of the next proposals are near {told}, then fewer, and none once results contradict it", *warnings]


def _has_some(region: Region, values: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether `region` contains a combination of `values`."""
    names = {condition.parameter for condition in region.conditions}
    combinations = itertools.product(*(values.get(name, ()) for name in names))
    return any(region.contains(dict(zip(names, combination, strict=True))) for combination in combinations)


def _check_avoid(args: Mapping[str, Any], view: SearchView) -> list[str]:
    region = parse_region_of(args["region"], view.space)
    few = check_rest([*list_regions(view.state, view.space), region], view.space)
    inside = [n for n, t in view.trials.items() if t.state == TrialState.RUNNING and region.contains(t.params)]
    warnings = [f"trial {number} runs there and goes on: stop it if it is not wanted" for number in inside]
    return [f"no trial is proposed with {region}", *few, *warnings]


def _check_narrow(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if not args["ranges"]:
        raise UsageError("a range must be given, such as lr=1e-4..1e-2, but none is.")
    state = SteeringState((*view.state.commands, Command("narrow", args)))  # it replaces earlier ranges
    few = check_rest(list_regions(state, view.space), view.space)
    told = ", ".join(f"{name}={text}" for name, text in args["ranges"].items())
    return [f"trials are proposed within {told}; those outside stay valid", *few]


def _check_budget(args: Mapping[str, Any], view: SearchView) -> list[str]:
    given = {name: value for name, value in args.items() if value is not None}
    if not given:
        raise UsageError("a budget must be given: --trials, --gpu-hours or --concurrency.")
    for name, value in given.items():
        kind = (int, float) if name == "gpu_hours" else int
        if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, but got {value!r}.")
    warnings = []
    if given.get("concurrency", 0) > view.room:
        warnings.append(f"the cluster has room for {view.room:g} at a time")
    if (trials := given.get("trials")) is not None and trials < view.begun:
        warnings.append(f"{view.begun} trials have begun already, and go on")
    return [", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in given.items()), *warnings]


def _check_pause(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if view.state.pause is not None and bool(view.state.pause.args.get("drain")) == bool(args.get("drain")):
        raise UsageError("the search must run, but is paused already.")
    if args.get("drain"):
        return ["no trial begins or continues; those that run go on to their next rung or end"]
    effect = "running trials stop at their next window or report; no trial begins"
    if not (losing := view.losing):
        return [effect]
    lost = f"{format_trials(losing)} would begin again, without a checkpoint. With --drain, nothing is lost"
    return [effect, lost]


def _check_continue(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if view.state.pause is None:
        raise UsageError("the search must be paused, but it is not.")
    return ["trials begin and continue again"]


def _check_finish(args: Mapping[str, Any], view: SearchView) -> list[str]:
    if view.is_over:
        raise UsageError("the search must not be over, but no trial of it continues any more.")
    runs = args.get("confirm")
    if runs is not None and not view.confirms:
        raise UsageError("--confirm must be for a search with confirming runs, but this one has none.")
    if runs is not None and runs < 1:
        raise UsageError(f"--confirm must be above 0, but got {runs}.")
    by = f" by {pluralize(runs, 'run')} at most" if runs else ""
    effect = "no trial continues after its next rung or end"
    effect += f"; the best ones are confirmed{by}" if view.confirms else ""
    warnings = ["the search is paused, and ends once it continues"] if view.state.pause is not None else []
    if points := sum(trial.state == TrialState.WAITING for trial in view.trials.values()):
        warnings.append(f"{pluralize(points, 'point')} to try will not be trained")
    if unfinished := [n for n, trial in view.trials.items() if trial.state == TrialState.RUNNING]:
        ending = "will end at the next rung or report, pruned or interrupted if it is not the last"
        warnings.append(f"{format_trials(unfinished)} {ending}")
    return [effect, *warnings]


def _check_undo(args: Mapping[str, Any], view: SearchView) -> list[str]:
    entry = next((entry for entry in view.log if entry.command.id == args["command"]), None)
    if entry is None:
        raise UsageError(f"undo must name a command of the log, but there is no {args['command']!r}.")
    named = f"{entry.command.operation} {entry.command.id}"
    if entry.command.operation == "budget" and entry.revision <= view.resumed_at:
        raise UsageError(f"undo must name a command since the search was resumed, but {named} is older. Give a budget.")
    if not entry.answer.undo:
        raise UsageError(f"undo must name a command that can be taken back, but {named} cannot.")
    if entry.command.id in find_undone(view.log):
        raise UsageError(f"undo must name a command that is in force, but {named} was undone.")
    state = build_state([each for each in view.log if each.command.id != entry.command.id])
    few = check_rest(list_regions(state, view.space), view.space)  # an earlier narrow, or what was undone, is in force
    return [f"{named} is in force no more. It was: {entry.answer.effect}", *few]


CHECKS: Mapping[str, Callable[[Mapping[str, Any], SearchView], list[str]]] = {
    "stop": _check_stop,
    "keep": _check_keep,
    "extend": _check_extend,
    "try": _check_try,
    "believe": _check_believe,
    "avoid": _check_avoid,
    "narrow": _check_narrow,
    "budget": _check_budget,
    "pause": _check_pause,
    "continue": _check_continue,
    "finish": _check_finish,
    "undo": _check_undo,
}  # each returns the effect, and then warnings


def _name_trials(numbers: Sequence[int]) -> str:
    return f"trial {numbers[0]}" if len(numbers) == 1 else f"each of {pluralize(len(numbers), 'trial')}"
