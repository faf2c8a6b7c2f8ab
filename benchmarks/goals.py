"""The goals of the project in figures, and how each is read from the result of a benchmark."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.recording import Result

SETTINGS = ONE, TWO_AT_A_TIME, TWO = (
    "1 worker a trial, 1 at a time",
    "1 worker a trial, 2 at a time",
    "2 workers a trial, 1 at a time",
)
ERRORS = {"fp32": 5e-6, "fp16": 5e-3, "bf16": 2e-2}  # the goals of accumulated gradients


@dataclass(frozen=True)
class Figure:
    """A measured figure, its spread, and whether it reaches its goal. None: it has no goal."""

    value: str
    spread: str
    reached: bool | None


Measure = Callable[[Result], Figure]


def measure_gap(setting: str, most_ms: float) -> Measure:
    """Return the measure of the time between two trials."""

    def measure(result: Result) -> Figure:
        row = result.find_row("turnaround", setting=setting, side="search")
        spread = f"quartiles {row['gap_low']:g} to {row['gap_high']:g} ms"
        return Figure(f"{row['gap']:g} ms", spread, row["gap"] <= most_ms)

    return measure


def measure_programs(result: Result) -> Figure:
    """Return the time between two programs that import torch and transformers, beside that of a loop."""
    ours, loop = (result.find_row("turnaround", side=side) for side in ("Searchlight", "loop of subprocesses"))
    value = f"{ours['gap']:.2f} s; {loop['gap']:.1f} s in a loop of subprocesses"
    return Figure(value, f"quartiles {ours['gap_low']:.2f} to {ours['gap_high']:.2f} s", ours["gap"] <= 1)


def measure_ratio(column: str, is_good: Callable[[float], bool], digits: int) -> Measure:
    """Return the comparison of Searchlight with Ray's recipe in all three settings."""

    def measure(result: Result) -> Figure:
        ours, recipe = (
            [result.find_row("turnaround", setting=setting, side=side)[column] for setting in SETTINGS]
            for side in ("search", "recipe")
        )
        ratios = [a / b for a, b in zip(ours, recipe, strict=True)]
        value = f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f}x"
        return Figure(value, "three settings, one run each", all(map(is_good, ratios)))

    return measure


def measure_loops(result: Result) -> Figure:
    ours, loop, apart = (
        result.find_row("turnaround", setting=ONE, side=side)["per_minute"] for side in ("search", "optuna", "process")
    )
    return Figure(f"{ours / apart:.0f}x with a process per trial; {ours / loop:.2g}x without", "one run", None)


def measure_driver(result: Result) -> Figure:
    row = result.find_row("driver")
    value = f"{row['ratio']:.2f}x: {row['first']:.1f} ms, then {row['last']:.1f} ms"
    return Figure(value, "means of 100 trials", row["ratio"] <= 1.2)


def measure_overhead(result: Result) -> Figure:
    ours, fabric, noise = (
        result.find_row("updates", model="tiny", row="plain", loop=loop)["added_share"]
        for loop in ("Searchlight", "Fabric", "raw, again")
    )
    return Figure(f"{ours:+.0f} %; Fabric {fabric:+.0f} %", f"noise {noise:+.1f} %", ours <= 12 and ours < fabric)


def measure_errors(result: Result) -> Figure:
    errors = {}
    for precision in ERRORS:
        row = result.find_row("errors", trainer=f"Searchlight, {precision}")
        errors[precision] = max(error for name, error in row.items() if name != "trainer")
    value = ", ".join(f"{precision} {error:.1e}" for precision, error in errors.items())
    return Figure(value, "largest of four windows", all(errors[name] <= goal for name, goal in ERRORS.items()))


def measure_tracking(result: Result) -> Figure:
    default, server = (
        result.find_row("stores", store=store)["longer"] for store in ("SQLite, the default", "mlflow server")
    )
    return Figure(f"{default:+.1f} %; {server:+.1f} %", "one run each", default <= 1 and server <= 2)


def measure_suggestion(result: Result) -> Figure:
    row = result.find_row("suggestions", trials=2000)
    return Figure(f"{row['median']:.1f} ms", f"quartiles {row['low']:.1f} to {row['high']:.1f} ms", row["median"] <= 50)


def measure_busy(result: Result) -> Figure:
    row = result.find_row("search")
    share = row["busy_of_each_gang"]
    return Figure(f"{share:.1f} % of {row['gangs']} gangs, {row['trials']} trials", "one run", share >= 95)


def measure_liquid(cells: tuple[str, ...], goal: float) -> Measure:
    """Return the comparison of cells with those of ncps."""

    def measure(result: Result) -> Figure:
        rows = [row for cell in cells for row in result.find_rows("ratios", cell=cell) if "ncps" in row["peer"]]
        ratios = [row["ratio"] for row in rows]
        low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
        ends = dict.fromkeys(f"{end:.1f}" for end in (min(ratios), max(ratios)))
        return Figure(f"{' to '.join(ends)}x", f"quartiles {low:.1f} to {high:.1f}x", min(ratios) >= goal)

    return measure


def measure_quality(against: str, most: float) -> Measure:
    """Return the time of the default to the final value of a side, on problems that were held out."""

    def measure(result: Result) -> Figure:
        row = result.find_row("measures", side="hyperband", problems="held out", against=against)
        share, low, high = (float(row[f"time{end}"]) for end in ("", "_seeds_low", "_seeds_high"))
        return Figure(f"{share:.2f} of its time", f"95 % over seeds: {low:.2f} to {high:.2f}", share <= most)

    return measure


def measure_picks(result: Result) -> Figure:
    row = result.find_row("problems", noise=1, runs=6, problem="mean")
    value = f"{row['worse']:.1f} %; {row['worse_without']:.1f} % without confirming runs"
    return Figure(value, "13 problems, 60 searches each", row["worse"] <= 12)


def measure_duration(table: str, most_s: float, **chosen: object) -> Measure:
    """Return the measure of the duration in a row of a table."""

    def measure(result: Result) -> Figure:
        seconds = result.find_row(table, **chosen)["duration"]
        return Figure(f"{seconds // 60:.0f}:{seconds % 60:02.0f} min", "one run", seconds <= most_s)

    return measure


def measure_search(result: Result) -> Figure:
    row = result.find_row("all")
    spread = f"shortest of {row['searches']}, beside other work; {row['cpu']:.0f} s of CPU time"
    return Figure(f"{row['shortest'] // 60:.0f}:{row['shortest'] % 60:02.0f} min", spread, row["shortest"] <= 180)


def measure_answers(result: Result) -> Figure:
    row = result.find_row("all")
    share = row["shown"] / row["searches"]
    return Figure(f"{row['shown']} of {row['searches']}", "one run", share >= 0.8)


# The figure, its goal, the result that has it, and its measure.
GOALS: list[tuple[str, str, str, Measure]] = [
    ("from one trial's end to the next one's first update, 1 worker", "at most 50 ms", "trial_turnaround",
     measure_gap(ONE, 50)),
    ("the same with 2 workers per trial", "at most 100 ms", "trial_turnaround", measure_gap(TWO, 100)),
    ("from one program's end to the next one's first line after its imports, torch and transformers", "at most 1 s",
     "program_turnaround", measure_programs),
    ("tiny trials per minute, against Ray's recipe", "150x", "trial_turnaround",
     measure_ratio("per_minute", lambda ratio: ratio >= 150, 0)),
    ("the same against a loop of Optuna in one process", "no goal", "trial_turnaround", measure_loops),
    ("time to the first report, against Ray's recipe", "at most 0.7x", "trial_turnaround",
     measure_ratio("first_report", lambda ratio: ratio <= 0.7, 2)),
    ("CPU time that an update adds to a hand-written loop, MLP 32-32-4", "at most 12 %, less than Fabric",
     "update_overhead", measure_overhead),
    ("relative error of the gradient of a window", "fp32 5e-6, fp16 5e-3, bf16 2e-2", "accumulation_error",
     measure_errors),
    ("a search of 250 s with MLflow: SQLite; a server", "at most 1 %; 2 %", "study/tracking_cost", measure_tracking),
    ("driver's CPU time per report, 1,000th trial against 10th", "at most 1.2x", "trial_turnaround", measure_driver),
    ("suggestion at 2,000 trials, outside of a search", "at most 50 ms", "suggestions", measure_suggestion),
    ("busy time of gangs with trials of a minute", "95 % of 256 gangs", "scale", measure_busy),
    ("busy time of gangs with trials of five minutes", "95 % of 1,000 gangs", "scale_thousand", measure_busy),
    ("CfC, tokens per second against ncps", "4x", "liquid_speed", measure_liquid(("CfC",), 4)),
    ("liquid cell in scan mode, against CfC of ncps", "12x", "liquid_speed", measure_liquid(("Liquid",), 12)),
    ("time to the final value of Ray's recipe, simulated, held-out problems", "at most 0.35", "search_quality",
     measure_quality("ray", 0.35)),
    ("the same against the best peer of each problem", "at most 0.7", "search_quality",
     measure_quality("best peer", 0.7)),
    ("picks that are worse than the defaults, simulated", "at most 12 % of searches", "confirmation", measure_picks),
    ("`make search` on two cores", "at most 3 min", "arc_searches", measure_search),
    ("the same: answers shown to beat the defaults", "8 of 10 searches", "arc_searches", measure_answers),
    ("`make test` on two cores", "at most 8 min", "check_durations",
     measure_duration("targets", 480, target="make test")),
    ("the whole check of a commit, lint and slow tests included", "at most 25 min", "check_durations",
     measure_duration("targets", 1500, target="all")),
]  # fmt: skip
