"""The goals of the project in figures, and how each is read from the recorded output of a benchmark."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
BENCH = RESULTS / "bench"  # what `make bench` wrote last


class NotMeasuredError(Exception):
    """A figure is not in the recorded output."""


@dataclass(frozen=True)
class Result:
    """A recorded output: the line about its date and machine, the command, and what was printed."""

    header: str
    command: str
    text: str

    @property
    def date(self) -> str:
        return self.header[:10]

    def find(self, pattern: str) -> tuple[str, ...]:
        """Return the groups of the first match of `pattern`, in which ^ and $ match at lines."""
        found = re.search(pattern, self.text, re.MULTILINE)
        if found is None:
            raise NotMeasuredError(pattern)
        return tuple(group or "" for group in found.groups())

    def find_all(self, pattern: str) -> list[tuple[str, ...]]:
        return [tuple(group or "" for group in found.groups()) for found in re.finditer(pattern, self.text, re.M)]


def load(name: str) -> Result:
    """Read the output of the last `make bench`. If it has none of `name`, read that of a longer study.

    "study/NAME" is always the longer study.
    """
    paths = BENCH / f"{name}.txt", RESULTS / f"{name.removeprefix('study/')}.txt"
    for path in paths:
        if path.exists():
            header, command, text = path.read_text(encoding="utf-8").split("\n", 2)
            return Result(header, command.removeprefix("$ "), text)
    raise NotMeasuredError(name)


@dataclass(frozen=True)
class Figure:
    """A measured figure, its spread, and whether it reaches its goal. None: it has no goal."""

    value: str
    spread: str
    reached: bool | None


Numbers = list[tuple[str, str, str, Callable[[Result], Figure]]]


def find_turnaround(result: Result, kind: str, side: str) -> dict[str, float]:
    """Return the figures of `side` in the block `kind` of trial_turnaround's output. Times are in seconds."""
    _, _, block = result.text.partition(f"{kind}\n")
    row = Result("", "", block.partition("\n\n")[0]).find(
        rf"^ +{side} +\d+ +([\d.]+) +\d+ +([\d.]+) s +(\d+) ms(?: +(\d+) to (\d+) ms)?"
    )
    rate, first, middle, low, high = (float(cell) if cell else float("nan") for cell in row)
    return {"rate": rate, "first": first, "gap": middle / 1e3, "low": low / 1e3, "high": high / 1e3}


ONE, TWO_AT_A_TIME, TWO = (
    "1 worker a trial, 1 at a time",
    "1 worker a trial, 2 at a time",
    "2 workers a trial, 1 at a time",
)


def measure_gap(kind: str, most_ms: float) -> Callable[[Result], Figure]:
    def measure(result: Result) -> Figure:
        found = find_turnaround(result, kind, "search")
        low, high = 1e3 * found["low"], 1e3 * found["high"]
        spread = f"quartiles {low:.0f} to {high:.0f} ms" if low == low else "one run"
        return Figure(f"{1e3 * found['gap']:.0f} ms", spread, 1e3 * found["gap"] <= most_ms)

    return measure


def measure_ratio(key: str, is_good: Callable[[float], bool], digits: int) -> Callable[[Result], Figure]:
    """Compare Searchlight with Ray's recipe in all three settings."""

    def measure(result: Result) -> Figure:
        kinds = (ONE, TWO_AT_A_TIME, TWO)
        ratios = [find_turnaround(result, k, "search")[key] / find_turnaround(result, k, "recipe")[key] for k in kinds]
        value = f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f}x"
        return Figure(value, "three settings, one run each", all(map(is_good, ratios)))

    return measure


def measure_loops(result: Result) -> Figure:
    ours = find_turnaround(result, ONE, "search")["rate"]
    loop, apart = (ours / find_turnaround(result, ONE, side)["rate"] for side in ("optuna", "process"))
    return Figure(f"{apart:.0f}x with a process per trial; {loop:.2g}x without", "one run", None)


def measure_driver(result: Result) -> Figure:
    first, last, ratio = result.find(r"^driver, CPU time per report: ([\d.]+) ms.*?, ([\d.]+) ms.*: ([\d.]+)x")
    return Figure(f"{ratio}x: {first} ms, then {last} ms", "means of 100 trials", float(ratio) <= 1.2)


def measure_overhead(result: Result) -> Figure:
    _, _, block = result.text.partition("tiny, plain:")
    sides = Result("", "", block.partition("\ntiny, clip")[0])
    added = {name: sides.find(rf"^  {name} +[\d.]+ us +[+-][\d.]+ us +([+-][\d.]+) %")[0] for name in PEERS_OF_UPDATE}
    ours, fabric, noise = (float(added[name]) for name in PEERS_OF_UPDATE)
    return Figure(f"{ours:+.0f} %; Fabric {fabric:+.0f} %", f"noise {noise:+.1f} %", ours <= 12 and ours < fabric)


PEERS_OF_UPDATE = ("Searchlight", "Fabric", "raw, again")


def measure_errors(result: Result) -> Figure:
    errors = {}
    for precision in ("fp32", "fp16", "bf16"):
        row = result.find(rf"^\| Searchlight, {precision} +\| +(\S+) \| +(\S+) \| +(\S+) \| +(\S+) \|")
        errors[precision] = max(map(float, row))
    value = ", ".join(f"{precision} {error:.1e}" for precision, error in errors.items())
    goals = {"fp32": 5e-6, "fp16": 5e-3, "bf16": 2e-2}
    return Figure(value, "largest of four windows", all(errors[name] <= goal for name, goal in goals.items()))


def measure_tracking(result: Result) -> Figure:
    row = r"^  {}.*? s +([+-][\d.]+) %"
    default, server = (float(result.find(row.format(name))[0]) for name in ("SQLite", "mlflow server"))
    return Figure(f"{default:+.1f} %; {server:+.1f} %", "one run each", default <= 1 and server <= 2)


def measure_suggestion(result: Result) -> Figure:
    median, low, high = result.find(r"^suggestion +2000 median ([\d.]+) ms, quartiles ([\d.]+) to ([\d.]+) ms")
    return Figure(f"{median} ms", f"quartiles {low} to {high} ms", float(median) <= 50)


def measure_busy(result: Result) -> Figure:
    trials, gangs = result.find(r" (\d+) trials of \d+ s .* over (\d+) gangs")
    share = result.find(r"^utilisation +([\d.]+) %")[0]
    return Figure(f"{share} % of {gangs} gangs, {trials} trials", "one run", float(share) >= 95)


def measure_liquid(names: tuple[str, ...], goal: float) -> Callable[[Result], Figure]:
    def measure(result: Result) -> Figure:
        ratios, spreads = [], list[float]()
        for name in names:
            (rest,) = result.find(rf"^{name} +[\d.]+ +[\d.]+ +(.*ncps.*)$")
            for ratio, low, high in re.findall(r"([\d.]+)x (?:\(([\d.]+) to ([\d.]+)\) )?ncps", rest):
                ratios.append(float(ratio))
                spreads += [float(low), float(high)] if low else []
        spread = f"quartiles {min(spreads):.1f} to {max(spreads):.1f}x" if spreads else "medians of 30 turns"
        ends = dict.fromkeys(f"{end:.1f}" for end in (min(ratios), max(ratios)))
        return Figure(f"{' to '.join(ends)}x", spread, min(ratios) >= goal)

    return measure


def measure_quality(kind: str, most: float) -> Callable[[Result], Figure]:
    def measure(result: Result) -> Figure:
        share, low, high = result.find(rf"^ +hyperband, {kind}: .*time ([\d.]+|inf) \[([\d.]+), (\S+)\] \[")
        return Figure(f"{share} of its time", f"95 % over seeds: {low} to {high}", float(share) <= most)

    return measure


def measure_picks(result: Result) -> Figure:
    _, _, block = result.text.partition("\nnoise 1 spreads, 6 confirming runs")
    without, share = Result("", "", block).find(r"^mean +([\d.]+)% +([\d.]+)% ")
    return Figure(
        f"{share} %; {without} % without confirming runs", "13 problems, 400 searches each", float(share) <= 12
    )


def measure_make_search(result: Result) -> Figure:
    minutes, seconds = result.find(r"^\d+ completed.* in (\d+):(\d+)$")
    return Figure(f"{minutes}:{seconds} min", "one run", 60 * int(minutes) + int(seconds) <= 180)


def measure_checks(name: str, most_min: float) -> Callable[[Result], Figure]:
    def measure(result: Result) -> Figure:
        minutes, seconds = result.find(rf"^{name} +(\d+):(\d+) min  passed$")
        return Figure(f"{minutes}:{seconds} min", "one run", int(minutes) + int(seconds) / 60 <= most_min)

    return measure


NUMBERS: Numbers = [
    ("from one trial's end to the next one's first update, 1 worker", "at most 50 ms", "trial_turnaround",
     measure_gap(ONE, 50)),
    ("the same with 2 workers per trial", "at most 100 ms", "trial_turnaround", measure_gap(TWO, 100)),
    ("tiny trials per minute, against Ray's recipe", "150x", "trial_turnaround",
     measure_ratio("rate", lambda ratio: ratio >= 150, 0)),
    ("the same against a loop of Optuna in one process", "no goal", "trial_turnaround", measure_loops),
    ("time to the first report, against Ray's recipe", "at most 0.7x", "trial_turnaround",
     measure_ratio("first", lambda ratio: ratio <= 0.7, 2)),
    ("CPU time that an update adds to a hand-written loop, MLP 32-32-4", "at most 12 %, less than Fabric",
     "update_overhead", measure_overhead),
    ("relative error of the gradient of a window", "fp32 5e-6, fp16 5e-3, bf16 2e-2", "accumulation_error",
     measure_errors),
    ("longer search with MLflow: SQLite; a server", "at most 1 %; 2 %", "study/tracking_cost", measure_tracking),
    ("driver's CPU time per report, 1,000th trial against 10th", "at most 1.2x", "trial_turnaround", measure_driver),
    ("suggestion at 2,000 trials", "at most 50 ms", "suggestions", measure_suggestion),
    ("busy time of gangs with trials of a minute", "95 % of 256 gangs", "scale", measure_busy),
    ("busy time of gangs with trials of five minutes", "95 % of 1,000 gangs", "scale_thousand", measure_busy),
    ("CfC, tokens per second against ncps", "4x", "liquid_speed", measure_liquid(("CfC",), 4)),
    ("liquid cell in scan mode, against CfC of ncps", "12x", "liquid_speed", measure_liquid(("Liquid",), 12)),
    ("time to the final value of Ray's recipe, simulated, held-out problems", "at most 0.35", "search_quality",
     measure_quality("held out", 0.35)),
    ("the same against the best peer of each problem", "at most 0.7", "search_quality",
     measure_quality("held out, best peer", 0.7)),
    ("picks that are worse than the defaults, simulated", "at most 12 % of searches", "confirmation", measure_picks),
    ("`make search` on two cores", "at most 3 min", "arc_best", measure_make_search),
    ("`make test` on two cores", "at most 8 min", "check_durations", measure_checks("make test", 8)),
    ("the whole check of a commit, lint and slow tests included", "at most 25 min", "check_durations",
     measure_checks("all", 25)),
]  # fmt: skip
