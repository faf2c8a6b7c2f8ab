"""The parts of pages that show the results of one benchmark in a form of their own."""

import json
from collections.abc import Callable, Sequence

from benchmarks.goals import GOALS, SETTINGS, Figure
from benchmarks.recording import BENCH, GPU, NotMeasuredError, Result, Row, load_result
from benchmarks.tables import Render, format_value, render_source, render_table

SIDES = ("Searchlight", "Ray's recipe", "Optuna, one process")


def render_goals() -> list[str]:
    rows = []
    for what, goal, name, measure in GOALS:
        try:
            result = load_result(name)
            figure, source = measure(result), f"`{name.removeprefix('study/')}`, {result.date}"
        except NotMeasuredError:
            figure, source = Figure("not measured", "", None), ""
        reached = {True: "yes", False: "**no**", None: ""}[figure.reached]
        rows.append([what, goal, figure.value, figure.spread, reached, source])
    return render_table(["figure", "goal", "measured", "spread", "reached", "result"], rows)


def render_last_run() -> list[str]:
    recorded = json.loads((BENCH / "last_run.json").read_text(encoding="utf-8"))
    rows = [[f"`{row['command']}`", row["outcome"], f"{row['seconds']:.0f} s"] for row in recorded]
    rows.append(["all", "", f"{sum(row['seconds'] for row in recorded) / 60:.1f} min"])
    return render_table(["command", "outcome of the last `make bench`", "took"], rows, 1)


def render_turnaround() -> list[str]:
    result, rows = load_result("trial_turnaround"), []
    names = {"search": "Searchlight", "recipe": "Ray's recipe", "inline": "Tune alone, without workers of its own"}
    names |= {"optuna": "Optuna in one process", "process": "Optuna, a process per trial"}
    for setting in SETTINGS:
        found = {row["side"]: row for row in result.find_rows("turnaround", setting=setting)}
        for side, row in ((side, found[side]) for side in names if side in found):
            gap, low, high = (format_s(row[name] / 1e3) for name in ("gap", "gap_low", "gap_high"))
            cells = [f"{row['per_minute']:.3g}", format_s(row["first_report"]), gap, f"{low} to {high}"]
            rows.append([setting if side == "search" else "", names[side], *cells])
    head = ["setting", "side", "trials per minute", "to the first report", "between two trials", "quartiles"]
    return [*render_table(head, rows, 4), "", render_source(result)]


def format_s(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def render_target() -> list[str]:
    result = load_result("time_to_target")
    rows = [
        [
            row["side"],
            f"{row['first_choice']:.0f} s",
            f"{row['loss']:.3f}",
            f"{row['loss_low']:.3f} to {row['loss_high']:.3f}",
            *(f"{row[name]:.0f}" for name in ("trials", "whole", "epochs")),
        ]
        for row in result.find_rows("means")
    ]
    head = ["side", "first choice", "true loss at the end", "from, to", "trials", "trained to the end", "epochs"]
    ours, recipe, loop = (result.find_rows("runs", side=side) for side in SIDES)
    if not len(ours) == len(recipe) == len(loop):
        raise NotMeasuredError("Each side must have a run under each seed.")
    more_epochs = sum(row["epochs"] for row in ours) / max(1, sum(row["epochs"] for row in recipe))
    loads = [row[name] for row in result.find_rows("runs") for name in ("load_before", "load_after")]
    return [
        f"Each side had {result.about.partition(';')[0]}:",
        "",
        *render_table(head, rows, 6),
        "",
        f"- **Against the recipe**, Searchlight trained {more_epochs:.0f} times as many epochs. It had a choice as "
        f"good as the recipe's last one after {list_times(ours)}; the recipe had this choice after "
        f"{list_times(recipe)}. Searchlight ended lower under {count_lower(ours, recipe)} of {len(ours)} seeds.",
        f"- **Optuna alone** ended lower than Searchlight under {count_lower(loop, ours)} of {len(ours)} seeds, and "
        f"lower than the recipe under {count_lower(loop, recipe)}.",
        f"- **Load average** during the runs: {min(loads)} to {max(loads)} on two cores.",
        "",
        render_source(result),
    ]


def list_times(runs: Sequence[Row]) -> str:
    times = [run.get("as_recipe") for run in runs]
    return ", ".join("never" if seconds is None else f"{seconds:.0f} s" for seconds in times)


def count_lower(runs: Sequence[Row], others: Sequence[Row]) -> int:
    """Count the seeds under which the loss of `runs` is lower. A side without a choice has no loss."""
    first, second = ([run.get("loss") or float("inf") for run in of_side] for of_side in (runs, others))
    return sum(a < b for a, b in zip(first, second, strict=True))


PEERS = {"random": "random search + `ASHAScheduler`", "optuna-hyperband": "Optuna's TPE with `HyperbandPruner`"}


def format_ratio(row: Row) -> list[str]:
    """Format the ratio of final medians, and its intervals over seeds, and over seeds and problems."""
    ratio, *ends = (
        f"{row[f'final_ratio{end}']:.2f}" for end in ("", "_seeds_low", "_seeds_high", "_both_low", "_both_high")
    )
    return [ratio, " to ".join(ends[:2]), " to ".join(ends[2:])]


def format_interval(row: Row, measure: str, over: Sequence[str]) -> str:
    """Format a measure and its intervals `over` "seeds", or "both" seeds and tables."""
    names = [(f"{measure}_{of}_low", f"{measure}_{of}_high") for of in over]
    intervals = (f"[{float(row[low]):.2f}, {float(row[high]):.2f}]" for low, high in names)
    return " ".join([f"{float(row[measure]):.2f}", *intervals])


def format_seeds(row: Row) -> str:
    return f"{row['lower']}/{row['equal']}/{row['higher']}"


def render_quality() -> list[str]:
    result, rows = load_result("search_quality"), []
    names = {"hyperband": "Searchlight", "hyperband-even": "Searchlight before 26 November 2026", **PEERS}
    for side, name in names.items():
        row = result.find_row("measures", side=side, problems="all", against="ray")
        rows.append([name, *format_ratio(row), format_interval(row, "single_ratio", ("seeds",))])
    head = ["side", "share of the recipe's regret", "over seeds", "over seeds and problems", "single searches"]
    return [*render_table(head, rows, 4), "", f"`{result.command}`, {result.date}."]


def render_quality_peers() -> list[str]:
    """Render how the default scheduler ends compared with each peer, over all problems and the held-out ones."""
    result, rows = load_result("search_quality"), []
    names = {"ray": "the recipe", **PEERS, "best peer": "the best of these on each problem"}
    for problems in ("all", "held out"):
        for against, name in names.items():
            row = result.find_row("measures", side="hyperband", problems=problems, against=against)
            lower = f"{row['ends_lower_on']} of {row['of']}"
            single = format_interval(row, "single_ratio", ("seeds",))
            rows.append([name, problems, *format_ratio(row), single, format_seeds(row), lower])
    head = ["compared with", "problems", "ratio", "over seeds", "over seeds and problems", "single searches"]
    return render_table([*head, "searches lower/equal/higher", "problems lower"], rows, 6)


def render_quality_problems() -> list[str]:
    """Render the final regret of each side on each problem, in the order of the default scheduler's ratio."""
    result, rows = load_result("search_quality"), []
    for row in sorted(result.find_rows("problems", side="hyperband"), key=lambda row: -row["ratio"]):
        finals = (
            result.find_row("problems", problem=row["problem"], side=side)["regret_100%"]
            for side in ("ray", "hyperband", *PEERS)
        )
        name = f"`{row['problem']}`{' (held out)' * (row['kind'] == 'held out')}"
        p = "< 0.01" if row["p_holm"] < 0.01 else f"{row['p_holm']:.2f}"
        rows.append([name, *(f"{final:.4f}" for final in finals), f"{row['ratio']:.2f}", format_seeds(row), p])
    head = ["problem", "the recipe", "`hyperband`", "random + ASHA", "Optuna", "ratio", "lower/equal/higher", "p"]
    return render_table(head, rows, 7)


LEFT_OUT = "families left out"  # in whole, the group of tables of benchmarks/search/recorded_tables.py
RECORDED = {
    "hyperband-even": "`hyperband` to before",
    "ray": "to the recipe",
    "random": "to random search + ASHA",
    "neps-priorband": "to PriorBand of NePS 0.17",
    "optuna-hyperband": "to Optuna's TPE with `HyperbandPruner`",
    "optuna-gp": "to Optuna's `GPSampler`",
    "optuna-gp-hyperband": "to the same with `HyperbandPruner`",
    "syne-asha": "to ASHA of Syne Tune 0.16",
    "syne-bohb": "to BOHB of Syne Tune 0.16",
    "best peer": "to the best of these peers on each table",
}
WRONG = ("hyperband@wrong", "hyperband@none", "with wrong defaults to none")
GOOD = ("hyperband@good", "hyperband@none", "with good defaults to none")
# The goal, the side and its peer, the measure, and whether its value and its upper limit over seeds reach the goal.
RECORDED_GOALS: list[tuple[str, str, str, str, Callable[[float, float], bool]]] = [
    ("`hyperband` to before: at most 0.80, upper limit below 0.95", "hyperband", "hyperband-even", "single_ratio",
     lambda value, high: value <= 0.80 and high < 0.95),
    ("to PriorBand: at most 0.70, upper limit below 0.85", "hyperband", "neps-priorband", "single_ratio",
     lambda value, high: value <= 0.70 and high < 0.85),
    ("to the recipe: at most 0.45", "hyperband", "ray", "single_ratio", lambda value, high: value <= 0.45),
    ("to the best peer of each table: at most 1.0", "hyperband", "best peer", "single_ratio",
     lambda value, high: value <= 1),
    ("wrong defaults to none: upper limit at most 1.10", *WRONG[:2], "single_ratio", lambda value, high: high <= 1.1),
    ("time to the recipe's final value: at most 0.35 of its time", "hyperband", "ray", "time",
     lambda value, high: value <= 0.35),
]  # fmt: skip


def render_recorded_defaults(name: str) -> Render:
    """Return the renderer of the ratios of the default scheduler on recorded tables, by group of tables."""
    groups = (LEFT_OUT, "all", "lcbench", "deepobs", "algoperf", "hporl")

    def render() -> list[str]:
        result, rows = load_result(name), []
        counts = {group: result.find_row("measures", tables=group)["of"] for group in groups}
        measured = {(row["side"], row["against"]) for row in result.find_rows("measures")}
        for side, against, label in (*(("hyperband", peer, label) for peer, label in RECORDED.items()), WRONG, GOOD):
            if (side, against) not in measured:
                continue
            of = {group: result.find_row("measures", side=side, against=against, tables=group) for group in groups}
            wide = [format_interval(of[group], "single_ratio", ("seeds", "both")) for group in groups[:2]]
            narrow = [f"{of[group]['single_ratio']:.2f}" for group in groups[2:]]
            rows.append([label, *wide, *narrow, format_seeds(of["all"]), f"{of['all']['by_best']:.2f}"])
        families = [f"`{group}` ({counts[group]})" for group in groups[2:]]
        head = ["ratio", f"families left out in whole ({counts[LEFT_OUT]})", f"all ({counts['all']})", *families]
        return render_table([*head, "all: lower/equal/higher", "all: best reports"], rows)

    return render


def render_recorded_goals() -> list[str]:
    """Render the goals on recorded tables beside what was measured, on families left out in whole and on all tables."""
    result, rows = load_result("recorded_defaults"), []
    for name, side, against, measure, reaches in RECORDED_GOALS:
        cells = []
        for group in (LEFT_OUT, "all"):
            row = result.find_row("measures", side=side, against=against, tables=group)
            reached = reaches(float(row[measure]), float(row[f"{measure}_seeds_high"]))
            cells += [format_interval(row, measure, ("seeds",)), "yes" if reached else "**no**"]
        rows.append([name, *cells])
    return render_table(["goal", "families left out in whole", "reached", "all tables", "reached"], rows)


def render_accumulation() -> list[str]:
    result = load_result("accumulation_error")
    columns = ("equal", "ragged", "tail", "next_epoch")
    rows = [[row["trainer"], *(format_error(row[name]) for name in columns)] for row in result.find_rows("errors")]
    head = ["trainer", "equal micro-batches", "ragged", "last window, half full", "next epoch's first"]
    return [*render_table(head, rows, 4), "", f"{result.about}. {render_source(result)}"]


def format_error(error: float | None) -> str:
    """Format a relative error as percent. None: the optimizer took no step."""
    if error is None:
        return "**never applied**"
    if error < 1e-6:
        return "< 0.0001 %"
    return f"{100 * error:.1g} %" if error < 0.01 else f"**{100 * error:.0f} %**"


def render_liquid() -> list[str]:
    result, rows = load_result("liquid_speed"), []
    names = {"CfC": "CfC", "Liquid": "input-gated liquid cell, a scan", "NCP": "NCP wiring", "LIF": "LIF"}
    for cell, name in names.items():
        tokens = f"{result.find_row('cells', cell=cell)['tokens']:.0f}"
        for row in result.find_rows("ratios", cell=cell):
            spread = f"{row['low']:.1f} to {row['high']:.1f}"
            rows.append([name, tokens, row["peer"], f"{row['ratio']:.1f}x", spread])
    head = ["cell", "thousand tokens/s", "the same elsewhere", "times as fast", "quartiles"]
    return [*render_table(head, rows, 2), "", render_source(result)]


def render_tracking_study() -> list[str]:
    names = {"SQLite, the default": "SQLite, the default", "mlflow server": "`mlflow server`"}
    rows = []
    for store, name in names.items():
        row = load_result("study/tracking_cost").find_row("stores", store=store)
        cells = [f"{row['longer']:+.1f} %", f"{row['wait_at_end']:.1f} s", f"{row['calls_per_report']:.3f} ms"]
        rows.append([name, *cells, f"{row['sender_cpu']:.1f} %"])
    head = ["store", "the search takes longer by", "of that at its end", "a report, on Tune's event loop"]
    return render_table([*head, "CPU of the threads that send to MLflow"], rows, 4)


def render_importances() -> list[str]:
    result = load_result("importances")
    found, nothing = (result.find_rows("found", function=name) for name in ("three of six matter", "nothing matters"))
    wrong = {row["trials"]: row["any_wrong"] for row in nothing}
    rows = [
        [str(row["trials"]), f"{row['lr']} %", f"{row['any_wrong']} %", f"{wrong[row['trials']]} %"] for row in found
    ]
    head = ["trials", "found: a learning rate that explains a third"]
    head += ["found wrongly: one of three other parameters without effect"]
    return render_table([*head, "found wrongly: one of six, if nothing matters"], rows)


def render_scaling() -> list[str]:
    """Render the loss above the best by how the setting for a large model was chosen."""
    result = load_result("study/scaling")
    sides = ("law", "law from Step Law", "unscaled", "muP", "Step Law", "random")
    rows = []
    for row in (row for row in result.find_rows("summary") if row["tables"] != "all"):
        is_mean = row["tables"] == "steplaw"
        tables = f"{'Step Law, mean' if is_mean else 'Marin, median'} of {row['targets']}"
        values = [format_value(row[side if is_mean else f"{side} median"]) for side in sides]
        shares = [f"{100 * row[name]:.0f} %" for name in ("share", "worse", "better")]
        rows.append([row["part"], tables, format_value(row["budget"]), *values, *shares])
    head = ["part", "tables", "budget", *sides, "cost of 40 runs there", "law worse", "law better"]
    return [*render_table(head, rows), "", render_source(result)]


def render_confirmation(table: str, column: str, label: str, **chosen: object) -> Render:
    """Return the renderer of a table of the figures of confirming runs, by `column` and number of runs."""

    def render() -> list[str]:
        rows = [
            [
                format_value(row[column]),
                str(row["runs"]),
                *(f"{row[name]:.1f} %" for name in ("worse_without", "worse")),
                *(f"{row[name]:.2f}" for name in ("bias_without", "bias")),
                *(f"{row[name]:.1f} %" for name in ("pick_covered", "differences_covered")),
                *(f"{row[name]:.3f}" for name in ("gain_without", "gain")),
            ]
            for row in load_result("confirmation").find_rows(table, **chosen)
        ]
        head = [label, "runs", "worse than the defaults, without", "with", "bias, without", "with", "pick covered"]
        return render_table([*head, "differences covered", "gain, without", "with"], rows)

    return render


def render_recorded_noise() -> list[str]:
    """Render the figures of confirming runs on trainings of others."""
    names = ("worse_without", "worse", "shown", "shown_wrongly", "pick_covered", "differences_covered")
    rows = [
        [f"`{row['family']}` ({row['of']})", str(row["runs"]), *(f"{row[name]:.1f} %" for name in names)]
        for row in load_result("recorded_noise").find_rows("families")
    ]
    head = ["family (tables)", "runs", "worse than the defaults, without", "with", "shown to beat them", "wrongly"]
    return render_table([*head, "pick covered", "differences covered"], rows)


def render_baselines(kind: str, peers: Sequence[str], runs: dict[str, str]) -> Render:
    """Return the renderer of the errors of the liquid network by domain, beside those of two simple models."""

    def render() -> list[str]:
        result = load_result("liquid_baselines")
        rows = []
        for first in result.find_rows("errors", run=next(iter(runs))):
            cells = [first["domain"], *(f"{first[peer]:.4f}" for peer in peers)]
            for run in runs:
                row = result.find_row("errors", run=run, domain=first["domain"])
                ends = ("end",) if run.endswith("at-once") else ("after", "end")
                cells.append(", ".join(f"{row[name]:.4f}" for name in ends))
            rows.append(cells)
        return render_table([kind, *(peer if "-" in peer else f"`{peer}`" for peer in peers), *runs.values()], rows)

    return render


def render_infeasible() -> list[str]:
    """Render the shares of lost trials and the regrets of searches in which 40 % of the space does not fit."""
    result, rows = load_result("infeasible"), []
    for row in result.find_rows("searches"):
        lost, regret = (
            f"{row[name]:{form}} ({row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}})"
            for name, form in (("lost", ".0f"), ("regret", ".3f"))
        )
        lower = "" if row["told"] == "failed" else f"{row['lower']} of {row['seeds']}"
        rows.append([row["problem"], f"`{row['sampler']}`", row["told"], lost, regret, lower])
    head = ["best config", "sampler", "told of a trial without memory", "trials lost, %", "final regret"]
    table = render_table([*head, "seeds that end lower"], rows, 3)
    return [f"{result.about}:", "", *table, "", render_source(result)]


def render_overhead(result: Result) -> list[str]:
    """Render what each library adds to the wall time of an update of a hand-written loop, a line per model and row."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in result.find_rows("updates"):
        found.setdefault((row["model"], row["row"]), {})[row["loop"]] = row
    loops = [loop for loop in next(iter(found.values())) if loop not in ("raw", "raw, data loader")]
    rows = [
        [*key, f"{by_loop['raw']['wall']:,.0f}", *(f"{by_loop[loop]['added']:+,.0f}" for loop in loops)]
        for key, by_loop in found.items()
    ]
    head = ["model", "row", "raw loop, us", *(f"added by {loop}, us" for loop in loops)]
    return render_table(head, rows, len(head) - 2)


def render_gpu() -> list[str]:
    """Render the claims about GPUs by the step that measured them, and what libraries add to an update there."""
    rows, tables, sources = [], [], dict[str, list[str]]()
    for path in sorted(GPU.glob("*.json")):
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
        claims = result.figures.pop("claims", [])
        rows += [[f"`{path.stem}`", row["claim"], row["figure"], row["verdict"]] for row in claims]
        if claims:
            sources.setdefault(f"{result.date}, {result.machine}; commit {result.commit}", []).append(f"`{path.stem}`")
        if result.figures:
            tables += ["", render_source(result), "", *render_overhead(result)]
    if not sources and not tables:
        raise NotMeasuredError(f"{GPU} must have results, but has none.")
    lines = [f"{', '.join(steps)}: {source}." for source, steps in sources.items()]
    return [*render_table(["step", "claim", "figure", "verdict"], rows), "", *lines, *tables]
