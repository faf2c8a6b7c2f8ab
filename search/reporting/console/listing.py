"""Prints the searches of a storage folder, and the plan of a search."""

import json
from typing import TYPE_CHECKING, Any

import yaml

from searchlight.search.command.program import describe_first_trial, takes_seed
from searchlight.search.command.targets import SEED
from searchlight.search.errors import UsageError
from searchlight.search.formatting import format_bytes, format_value
from searchlight.search.schedulers.confirmation import FEWEST_RUNS
from searchlight.search.space.fidelity import format_amount, unit_label
from searchlight.trainables.filesystem.paths import StoragePath

if TYPE_CHECKING:
    from searchlight.search.analysis.cost_estimate import CostEstimate
    from searchlight.search.config import SearchConfig


def print_plan(plan: Any, cost: "CostEstimate | None" = None) -> None:
    """Print the search's YAML, with its resolved space and known `cost` as comments."""
    from searchlight.search.config.loading import to_yaml
    from searchlight.search.reporting.console.preflight import format_estimate
    from searchlight.trainables.flatten import flatten

    print(to_yaml(plan.config), end="")
    print(f"# {_describe_schedule(plan)}")
    if plan.config.fidelity != "epochs" and plan.space.epochs is not None:
        print(f"# a trial ends after {plan.space.epochs} epochs at the latest")
    if not plan.command:
        print(f"# {_describe_checkpoints(plan)}")
    if line := describe_confirmation(plan):
        print(f"# {line}")
    if cost is not None:
        print(f"# cost: {format_estimate(cost)}")
    elif not plan.command:
        print("# cost: unknown until --preflight measures an epoch")
    for note in plan.notes:
        print(f"# {note}")
    for parameter in plan.space.parameters:
        when = " and ".join(f"{name} is {' or '.join(map(str, values))}" for name, values in parameter.when.items())
        print(f"# searched: {parameter.name} {parameter}{f' when {when}' if when else ''}")
    for point in filter(None, plan.first):
        print(f"# tried first: {', '.join(f'{name}={value}' for name, value in point.items())}")
    if plan.command:
        first = plan.first[0] if plan.first else {}
        trial = "trial 0" if all(each.name in first for each in plan.space.parameters) else "a trial, for example"
        for line in describe_first_trial(plan.command, plan.space, first):
            print(f"# {trial}: {line}")
    for line in plan.warm.lines:
        print(f"# warm start: {line}")
    names = {parameter.name for parameter in plan.space.parameters}
    for key, value in flatten(plan.space.build_config({}).model_dump(mode="json")).items():
        if key not in names and (key != SEED or not plan.command or takes_seed(plan.command)):
            print(f"# fixed: {key} {value}")


def _describe_schedule(plan: Any) -> str:
    end = "program ends" if plan.command else "function returns"
    if plan.is_limited:
        return str(plan.schedule)
    return f"a trial ends when its {end}" + (f"; {plan.schedule}" if plan.config.scheduler != "none" else "")


def describe_confirmation(plan: Any) -> str:
    """Return a line with the expected cost of the search's confirmation, or "" without one."""
    runs, confirmation = plan.confirming_runs, plan.confirmation
    if confirmation is None:
        return ""
    rule = f"the best trials{'' if confirmation.defaults is None else ' and the defaults'} train again under new seeds"
    if runs is None:
        return f"confirmation: {rule}, for a fifth of what the trials took, at least {FEWEST_RUNS} runs"
    if not plan.is_limited:
        return f"confirmation: {rule}, at most {runs} runs"
    one = f"{format_amount(plan.schedule.limit)} {unit_label(plan.config.fidelity)}"
    cost = f"at most {runs} runs of {one}, {format_amount(runs * plan.schedule.limit)} in all"
    trials = f"; the trials take about {format_amount(plan.expected_cost)}" if plan.expected_cost else ""
    return f"confirmation: {rule}, {cost}{trials}"


def _describe_checkpoints(plan: Any) -> str:
    """Return a line that says which checkpoints are kept, with their size in an earlier search of the task."""
    config = plan.config
    count = min(config.keep_checkpoints, config.trials)
    front = " and the Pareto front" if len(plan.objectives) > 1 else ""
    runs = ", the best confirming run of each config" if plan.confirmation else ""
    kept = f"checkpoints: those of the best {count} of the trials{front}{runs}"
    kept += ", and up to 3 of each trial that has not ended"
    name, size = _find_checkpoint_bytes(config)
    if not size:
        return f"{kept}; their size is unknown until the first checkpoint"
    return f"{kept}; about {format_bytes(size)} each as in {name}, {format_bytes(count * size)} for the best {count}"


def _find_checkpoint_bytes(config: "SearchConfig") -> tuple[str, int]:
    """Return the newest search of the same task with checkpoints, and the bytes of its largest one."""
    from searchlight.search.execution.checkpoint_manager import CHECKPOINTS, measure_largest
    from searchlight.search.folder.locations import list_searches
    from searchlight.search.option import read_yaml

    for name in reversed(list_searches(config.storage)):
        location = config.storage / name
        try:
            earlier = read_yaml((location / "search.yaml").read_text(encoding="utf-8"))
            if earlier["task"] == config.task and (size := measure_largest(location / CHECKPOINTS)):
                return name, size
        except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError, RecursionError):  # it is unreadable
            continue
    return "", 0


def print_searches(storage: StoragePath, as_json: bool = False) -> None:
    """Print a line for each search in `storage`, the newest last, or all searches as one JSON list."""
    from searchlight.search.analysis.best_trials import count_outcomes
    from searchlight.search.analysis.confirmed_best import confirm, find_confirmed_best
    from searchlight.search.folder.locations import list_searches, list_sized_searches
    from searchlight.search.study.record import load_search

    try:
        if storage.exists() and not storage.is_dir():
            raise UsageError(f"--storage must be a folder, but {storage} is a file.")
        names = list_searches(storage)
        others = sorted({place.name for place in storage.iterdir()} - {*names}) if storage.is_dir() else []
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be read, but {error}.") from error
    searches: list[dict[str, Any]] = []
    for name in names:
        try:
            record = load_search(storage / name)
        except UsageError as error:  # list the others if a database is unavailable
            searches.append({"name": name, "error": str(error)})
        else:
            best, metric = find_confirmed_best(record, confirm(record)), record.objective.metric
            own = {"trial_id": best.trial_id, "metric": metric, "value": best.value} if best else None
            searches.append({"name": name, "outcomes": dict(count_outcomes(record.trials)), "best": own})
    sized = {name: list_sized_searches(storage / name) for name in others}
    searches += [{"name": name, "searches": own} for name, own in sized.items() if own]
    if as_json:
        print(json.dumps(searches))
        return
    if not searches:
        print(f"no searches in {storage} yet")
    for each in searches:
        if "error" in each:
            print(f"{each['name']}  {each['error']}")
            continue
        if "searches" in each:
            print(f"{each['name']}  a search at each size: {', '.join(each['searches'])}")
            continue
        counts = ", ".join(f"{count} {outcome}" for outcome, count in each["outcomes"].items())
        text = f"  best {own['metric']} {format_value(own['value'])}" if (own := each["best"]) else ""
        print(f"{each['name']}  {counts}{text}")
