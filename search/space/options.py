"""The options of the search space and of the objectives."""

from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator

from searchlight.search.option import Options, option, wrap_in_list
from searchlight.search.space.constraints import parse_constraint


def join_choices(value: Any) -> Any:
    """Return a YAML list of choices in the form of the command line, "a,b"."""
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


def parse_point(value: Any) -> Any:
    """Return the parameters of "lr=1e-3,precision=bf16" by name. A dict keeps its values."""
    if isinstance(value, dict):
        return {str(name): item for name, item in value.items()}
    parts = [part.partition("=") for part in str(value).split(",")]
    if not all(equals and name.strip() for name, equals, _ in parts):
        raise ValueError(f"must be like name=value,name=value, but got {value!r}")
    return {name.strip(): text.strip() for name, _, text in parts}


Point = Annotated[dict[str, Any], BeforeValidator(parse_point)]
Bound = Annotated[str, BeforeValidator(parse_constraint)]

_space = partial(option, "Search space and objective")


class SpaceOptions(Options):
    """Which parameters are searched over what, which are fixed, and what is optimized."""

    search: dict[str, Annotated[str, BeforeValidator(join_choices)]] = _space(
        {}, "NAME=SPACE", "Search a parameter over a range or choices: 1e-5..1e-2:log, 8..64:step=8 or fp32,bf16."
    )
    set: dict[str, Any] = _space({}, "NAME=VALUE", "Fix a parameter at this value.")
    try_: Annotated[list[Point], BeforeValidator(wrap_in_list)] = _space(
        [],
        "NAME=VALUE,...",
        "Try these values right after the task's defaults, before the sampler proposes any.",
        alias="try",
    )
    defaults: dict[str, Any] = option(
        "Only in a YAML file", {}, "", "Values of searched parameters that stand for the task's defaults."
    )
    objective: Annotated[tuple[str, ...], BeforeValidator(wrap_in_list)] = _space(
        (),
        "METRIC[:min|max]",
        "Metric to optimize. Several give a Pareto front. The first one of a task class must be its own objective. "
        "Default: what the task declares.",
    )
    constraint: Annotated[tuple[Bound, ...], BeforeValidator(wrap_in_list)] = _space(
        (),
        "METRIC<=VALUE",
        "Bound of a metric, e.g. val/latency_ms<=20 or val/accuracy>=0.9. A trial whose reports all miss it is "
        "infeasible, and never the best one.",
    )
    once: bool = _space(False, "", "Train one trial with the defaults of the task, without a search.")
