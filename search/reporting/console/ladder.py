"""The result of searches at several sizes, for the console."""

from collections.abc import Sequence

from rich.console import Console

from searchlight.search.analysis.ladder import Ladder
from searchlight.search.formatting import format_duration, format_interval, format_value
from searchlight.search.reporting.console.tables import build_details, print_line
from searchlight.search.scaling.law import ScalingLaw
from searchlight.search.scaling.size import describe_size
from searchlight.trainables.filesystem.paths import StoragePath

SPREAD = (
    "The spread of the fit is no confidence interval: it may miss the true value, above all after few noisy trials."
)


def build_forecast_rows(ladder: Ladder, law: ScalingLaw) -> list[list[str]]:
    """Return the setting for the target with its law, a row per parameter, the head first."""
    kinds = list(dict.fromkeys("exponent" if parameter.log else "slope" for parameter in law.parameters))
    exponents = [f"{' or '.join(kinds)} of {name}" for name in law.sizes]
    rows = [["parameter", "value", "spread of the fit", "moves", *exponents]]
    forecast = law.predict(ladder.target)
    for parameter in law.parameters:
        name, value = parameter.name, forecast[parameter.name]
        moves = "yes" if law.moves[name] else "not clearly" if law.trends[name] else "no"
        kind = ("exponent " if parameter.log else "slope ") if len(kinds) > 1 else ""
        estimates = [value, *law.exponents[name].values()]
        (best, spread), *own = ((format_value(each.value), format_interval(each.low, each.high)) for each in estimates)
        rows.append([name, best, spread, moves, *(f"{kind}{slope} ({around})" for slope, around in own)])
    rows += [[name, format_value(value), "-", "-", *["-"] * len(exponents)] for name, value in ladder.choices.items()]
    return rows


def build_size_rows(ladder: Ladder) -> list[list[str]]:
    """Return the searches, a row per size, the head first."""
    objective = ladder.searches[0].record.objective
    rows = [["size", "search", "trials", "confirming runs", "time of all workers", f"best {objective.metric}"]]
    for search in ladder.searches:
        best = format_value(search.best_value) if search.best is not None else "-"
        counts = [str(len(search.record.trials)), str(len(search.record.confirming_runs))]
        rows.append([search.name, search.record.name, *counts, format_duration(search.gpu_seconds), best])
    return rows


def print_ladder(console: Console, ladder: Ladder, left_out: Sequence[str], stopped: str, page: StoragePath) -> None:
    """Print the searches, the setting for the target and what it rests on."""
    if ladder.searches:
        console.print(build_details(build_size_rows(ladder)))
    if left_out:
        print_line(console, f"not searched: {', '.join(left_out)}{f', because {stopped}' if stopped else ''}")
    if ladder.law is None:
        return print_line(console, "no trial is complete, so there is no law")
    print_line(console, f"\nthe setting for {describe_size(ladder.target)}:")
    console.print(build_details(build_forecast_rows(ladder, ladder.law)))
    print_line(console, SPREAD)
    for warning in ladder.law.find_warnings(ladder.target):
        print_line(console, f"caution: {warning}")
    if ladder.proof is not None:
        print_line(console, ladder.proof.statement)
    return print_line(console, f"look: {page}")
