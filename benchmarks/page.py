"""Write the tables of docs/benchmarks.md from the recorded output of the benchmarks.

The text between `<!-- generated: NAME -->` and `<!-- end -->` is replaced; the rest of the page is written by hand.

    python benchmarks/page.py
"""

import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import (
    BENCH,
    NUMBERS,
    ONE,
    TWO,
    TWO_AT_A_TIME,
    Figure,
    NotMeasuredError,
    Result,
    find_turnaround,
    load,
)

PAGE = ROOT / "docs" / "benchmarks.md"
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
SIDES = ("Searchlight", "Ray's recipe", "Optuna, one process")

# Long studies, which `make bench` does not repeat: their results, and how long they took on two cores, where recorded.
STUDIES = {
    "search_quality": "an hour",
    "search_quality_peers": "21 min",
    "search_quality_seconds": "7 min",
    "search_variants": "many hours",
    "confirmation": "",
    "importances": "",
    "arc_best": "2:42 min",
    "arc_spread": "10 CPU-minutes",
    "arc_ablation": "10 CPU-minutes",
    "arc_answers": "11 CPU-minutes of a training",
    "arc_refinement": "",
    "turnaround_lm": "6 min",
    "continual": "10 CPU-minutes",
    "plasticity": "",
    "liquid_baselines": "13 CPU-minutes",
    "liquid_best": "37:32 min beside other work",
    "scale_thousand": "15 min",
    "soak": "63 min",
    "check_durations": "25 min",
}


def render_table(head: list[str], rows: list[list[str]], numeric: int = 0) -> list[str]:
    """Render a Markdown table, of which the last `numeric` columns are aligned to the right."""
    rule = ["---"] * (len(head) - numeric) + ["---:"] * numeric
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def render_numbers() -> list[str]:
    rows = []
    for what, goal, name, measure in NUMBERS:
        try:
            result = load(name)
            figure, source = measure(result), f"`{name.removeprefix('study/')}`, {result.date}"
        except NotMeasuredError:
            figure, source = Figure("not measured", "", None), ""
        reached = {True: "yes", False: "**no**", None: ""}[figure.reached]
        rows.append([what, goal, figure.value, figure.spread, reached, source])
    return render_table(["figure", "goal", "measured", "spread", "reached", "result"], rows)


def render_turnaround() -> list[str]:
    result, rows = load("trial_turnaround"), []
    names = {"search": "Searchlight", "recipe": "Ray's recipe", "inline": "Tune alone, without workers of its own"}
    names |= {"optuna": "Optuna in one process", "process": "Optuna, a process per trial"}
    for kind in (ONE, TWO_AT_A_TIME, TWO):
        for side, name in names.items():
            try:
                found = find_turnaround(result, kind, side)
            except NotMeasuredError:  # not each side runs in each setting
                continue
            cells = [format_s(found[key]) for key in ("first", "gap")]
            spread = "" if found["low"] != found["low"] else f"{format_s(found['low'])} to {format_s(found['high'])}"
            rows.append([kind if side == "search" else "", name, f"{found['rate']:.3g}", *cells, spread])
    head = ["setting", "side", "trials per minute", "to the first report", "between two trials", "quartiles"]
    return [*render_table(head, rows, 4), "", render_source(result)]


def format_s(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def render_source(result: Result) -> str:
    return f"`{result.command}`: {result.header}."


def render_target() -> list[str]:
    result = load("time_to_target")
    side = rf"({'|'.join(SIDES)})"
    means = result.find_all(rf"^{side} +\d+ +(\d+) s +([\d.]+) +([\d.]+) +([\d.]+) +(\d+) +(\d+) +(\d+)$")
    rows = [
        [name, f"{first} s", f"{float(loss):.3f}", f"{a} to {b}", *more] for name, first, loss, a, b, *more in means
    ]
    head = ["side", "first choice", "true loss at the end", "from, to", "trials", "trained to the end", "epochs"]
    run = rf"^{side} +(\d+) +(\d+ s|never) +(\S+) +(\d+ s|never) +\d+ +\d+ +(\d+) +([\d.]+) to ([\d.]+)$"
    runs = {
        (name, seed): (loss, reached, int(epochs)) for name, seed, _, loss, reached, epochs, *_ in result.find_all(run)
    }
    loads = [float(load) for found in result.find_all(run) for load in found[6:]]
    seeds = sorted({seed for _, seed in runs})
    if not runs or len(runs) < len(SIDES) * len(seeds):
        raise NotMeasuredError("a run of each side under each seed")
    (setting,) = result.find(r"^(\d+ s on \d+ cores)")
    ours, recipe, loop = ([runs[name, seed] for seed in seeds] for name in SIDES)
    more_epochs = statistics.fmean(x[2] for x in ours) / max(1, statistics.fmean(x[2] for x in recipe))
    return [
        f"Each side had {setting}:",
        "",
        *render_table(head, rows, 6),
        "",
        f"- **Against the recipe**, Searchlight trained {more_epochs:.0f} times as many epochs. It had a choice as "
        f"good as the recipe's last one after {list_cells(ours, 1)}; the recipe had this choice after "
        f"{list_cells(recipe, 1)}. Searchlight ended lower under {count_lower(ours, recipe)} of {len(seeds)} seeds.",
        f"- **Optuna alone** ended lower than Searchlight under {count_lower(loop, ours)} of {len(seeds)} seeds, and "
        f"lower than the recipe under {count_lower(loop, recipe)}.",
        f"- **Load average** during the runs: {min(loads)} to {max(loads)} on two cores.",
        "",
        render_source(result),
    ]


Outcome = tuple[str, str, int]


def list_cells(runs: list[Outcome], column: int) -> str:
    return ", ".join(str(run[column]) for run in runs)


def count_lower(runs: list[Outcome], others: list[Outcome]) -> int:
    """Count the seeds under which the loss of `runs` is lower. A side without a choice has "-"."""
    losses = [
        (float("inf") if loss == "-" else float(loss) for loss, *_ in pair) for pair in zip(runs, others, strict=True)
    ]
    return sum(first < second for first, second in losses)


def render_quality() -> list[str]:
    result, rows = load("search_quality"), []
    names = {"hyperband": "Searchlight", "asha": "Searchlight, `--scheduler asha`"}
    names["random"] = "random search + `ASHAScheduler`"
    names["optuna-hyperband"] = "Optuna's TPE with `HyperbandPruner`"
    interval = r"\[([\d.]+), ([\d.]+)\]"
    for side, name in names.items():
        ratio, low, high, a, b = result.find(rf"^ +{side}, all: final ratio ([\d.]+) {interval} {interval}")
        rows.append([name, ratio, f"{low} to {high}", f"{a} to {b}"])
    head = ["side", "share of the recipe's regret", "over seeds", "over seeds and problems"]
    return [*render_table(head, rows, 3), "", f"`{result.command}`, {result.date}."]


def render_accumulation() -> list[str]:
    result = load("accumulation_error")
    error = r" +(\d\.\de[+-]\d+|no step) \|"
    found = result.find_all(rf"^\| (\S.*?) +\|{4 * error}$")
    rows = [[name, *map(format_error, cells)] for name, *cells in found]
    head = ["trainer", "equal micro-batches", "ragged", "last window, half full", "next epoch's first"]
    versions = result.text.partition("\n")[0]
    return [*render_table(head, rows, 4), "", f"{versions}. {render_source(result)}"]


def format_error(error: str) -> str:
    """Format a relative error as percent."""
    if error == "no step":
        return "**never applied**"
    percent = 100 * float(error)
    if percent < 1e-4:
        return "< 0.0001 %"
    return f"{percent:.1g} %" if percent < 1 else f"**{percent:.0f} %**"


def render_liquid() -> list[str]:
    result, rows = load("liquid_speed"), []
    names = {"CfC": "CfC", "Liquid": "input-gated liquid cell, a scan", "NCP": "NCP wiring", "LIF": "LIF"}
    for name, written in names.items():
        tokens, ratios = result.find(rf"^{name} +[\d.]+ +([\d.]+) +(.*)$")
        for times, spread, peer in re.findall(r"([\d.]+)x (?:\((.*?)\) )?(.*?)(?=, [\d.]+x |$)", ratios):
            rows.append([written, f"{float(tokens):.0f}", peer, f"{times}x", spread])
    head = ["cell", "thousand tokens/s", "the same elsewhere", "times as fast", "quartiles"]
    return [*render_table(head, rows, 2), "", render_source(result)]


def render_output(name: str) -> Callable[[], list[str]]:
    def render() -> list[str]:
        result = load(name)
        return [render_source(result), "", "```", *result.text.strip("\n").splitlines(), "```"]

    return render


def render_last_run() -> list[str]:
    from benchmarks.bench import BENCHMARKS, OUTCOMES, load_outcomes

    recorded = load_outcomes(BENCH / OUTCOMES)
    rows = []
    for bench in BENCHMARKS:
        seconds, _, outcome = recorded.get(bench.name, "      not run yet").strip().partition(" s  ")
        outcome, seconds = (outcome, f"{seconds} s") if outcome else (seconds, "")
        rows.append([f"`{bench.command}`", outcome, seconds])
    total = sum(float(line.split()[0]) for line in recorded.values())
    rows.append(["all", "", f"{total / 60:.1f} min"])
    return render_table(["command", "outcome of the last `make bench`", "took"], rows, 1)


def render_studies() -> list[str]:
    rows = []
    for name, takes in STUDIES.items():
        result = load(name)
        command = result.command.partition(", with ")[0]  # scripts of earlier commits have options of their own
        rows.append([f"`{name}.txt`", f"`{command}`", result.date, takes])
    return render_table(["result", "command", "measured", "takes"], rows)


OUTPUTS = ("scale", "suggestions", "tracking_cost", "update_overhead", "reduction_cost", "study_stores", "preflight",
           "arc_speed", "lm")  # fmt: skip
PARTS: dict[str, Callable[[], list[str]]] = {
    "numbers": render_numbers,
    "last-run": render_last_run,
    "turnaround": render_turnaround,
    "target": render_target,
    "quality": render_quality,
    "accumulation": render_accumulation,
    "liquid": render_liquid,
    "studies": render_studies,
    **{name: render_output(name) for name in (*OUTPUTS, "turnaround_lm")},
}


def render_page(page: str) -> str:
    """Return `page` with the present contents of its generated parts."""

    def render(match: re.Match[str]) -> str:
        try:
            lines = PARTS[match[2]]()
        except NotMeasuredError:
            lines = ["Not measured yet."]
        return match[1] + "\n".join(lines) + "\n"

    return MARKED.sub(render, page)


def write_page() -> None:
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_page()
