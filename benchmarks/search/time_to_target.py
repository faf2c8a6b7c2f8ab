"""Compare a whole search with Ray's documented recipe and with Optuna alone, over equal wall-clock times.

All sides search the same space with the same trials (target_task.py) on the same two cores, in turn, under several
seeds. Each runs in its own process, from whose start the seconds count; all of them try the task's defaults first. A
side's choice at any moment is the config with the lowest loss reported so far. Searchlight's last choice is the one
that its confirming runs make within the same time. The true value of a config is its mean loss of trainings under
other seeds, the same for all sides, and without any of the tools.

    python benchmarks/search/time_to_target.py [--seconds 150] [--seeds 3] [--record]
    python benchmarks/search/time_to_target.py --plot docs/images/time_to_target.png      draws the recorded run again
"""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.task_runs import in_processes
from benchmarks.recording import BENCH, ROOT, SEARCH, Row, Table, create_parser, print_progress, print_result
from benchmarks.search.target_task import EPOCHS, SPACE, train_plainly

HERE = Path(__file__).resolve().parent
TABLE = BENCH / "time_to_target.csv"
PICTURE = ROOT / "docs" / "images" / "time_to_target.png"
SIDES = {"search": "Searchlight", "recipe": "Ray's recipe", "optuna": "Optuna, one process"}
COLORS = {"search": "#1f6fb4", "recipe": "#d9822b", "optuna": "#7a7a7a"}
LATEST_S = 10  # after its time a side is killed: later reports do not count
LAST_LINE_S = 15  # of a search's time: its imports, which its budget leaves out, and its end

Config = tuple[tuple[str, float], ...]


@dataclass
class Run:
    """What one side did in its time.

    Attributes:
        choices: Each choice with the seconds since the start of its process.
        trials, full: The trials that reported, and those of them that reached the last epoch.
        epochs: The epochs of all trials, without confirming runs.
        load: The load average of the machine, before and after.
    """

    side: str
    seed: int
    choices: list[tuple[float, Config]]
    trials: int
    full: int
    epochs: int
    seconds: float
    load: tuple[float, float]


def run(side: str, seed: int, seconds: float) -> Run:
    """Run one side for `seconds` and read what it reported."""
    with tempfile.TemporaryDirectory(prefix="target-") as folder:
        log, load = Path(folder) / "events", os.getloadavg()[0]
        log.touch()
        token = Path(folder) / "ray-token"
        token.write_text("0" * 64)
        own = {"BENCH_LOG": str(log), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        env = {**os.environ, **own, "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONPATH": f"{HERE}:{ROOT}"}
        env.pop("MLFLOW_TRACKING_URI", None)
        start = time.time()
        with open(Path(folder) / "errors", "w+") as errors, open(Path(folder) / "out", "w+") as out:
            process = subprocess.Popen(
                [sys.executable, *build_command(side, seed, seconds, folder)],
                env=env,
                cwd=folder,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            wait_for(process, start + seconds + LATEST_S)
            ended = time.time()
            out.seek(0)
            printed = out.read()
            found = [json.loads(line) for line in log.read_text().splitlines()]
            reports = [report for report in found if report["at"] <= start + seconds and report["seed"] == 0]
            if process.returncode and not reports:  # the other runs count nevertheless
                errors.seek(0)
                print(f"\n{side} reported nothing under seed {seed}:\n{errors.read()[-3000:]}", file=sys.stderr)
    choices = find_choices(reports, start)
    if side == "search" and ended <= start + seconds and not process.returncode:
        choices.append((ended - start, freeze_config(json.loads(printed)["best"]["config"])))
    longest: dict[Config, int] = {}
    for report in reports:
        config = freeze_config(report["config"])
        longest[config] = max(longest.get(config, 0), report["epoch"])
    full = sum(epochs == EPOCHS for epochs in longest.values())
    loads = (load, os.getloadavg()[0])
    return Run(side, seed, choices, len(longest), full, sum(longest.values()), ended - start, loads)


def build_command(side: str, seed: int, seconds: float, folder: str) -> list[str]:
    """Return the arguments of Python for one side."""
    if side != "search":
        return [str(HERE / "reference_searches.py"), side, str(seed), str(seconds), folder]
    task = f"{HERE / 'target_task.py'}:Target"
    fixed = ["--set", "precision=fp32", "seed=0", "--name", "target", "--storage", folder, "--json"]
    budget = ["--trials", "1000", "--time-budget", f"{seconds - LAST_LINE_S:g}s"]
    return [str(SEARCH), task, *budget, "--seed", str(seed), *fixed]


def wait_for(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait for the end of a process. At the deadline, kill it and all that it started."""
    try:
        process.wait(max(0.0, deadline - time.time()))
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def freeze_config(values: Mapping[str, Any]) -> Config:
    return tuple((name, values[name]) for name in SPACE)


def find_choices(reports: Sequence[Mapping[str, Any]], start: float) -> list[tuple[float, Config]]:
    """Return the configs with the lowest loss so far, each with the seconds after `start`."""
    choices: list[tuple[float, Config]] = []
    best = float("inf")
    for report in sorted(reports, key=lambda report: report["at"]):
        if report["loss"] < best:
            best, config = report["loss"], freeze_config(report["config"])
            if not choices or choices[-1][1] != config:
                choices.append((report["at"] - start, config))
    return choices


def evaluate(training: tuple[Config, int]) -> float:
    """Return the lowest loss of a whole training."""
    config, seed = training
    losses: list[float] = []
    train_plainly(dict(config), seed, lambda epoch, loss: losses.append(loss))
    return min(losses)


def compute_true_values(runs: Sequence[Run], seeds: int, processes: int) -> dict[Config, float]:
    """Return the mean loss of each chosen config under `seeds` seeds that no side used."""
    configs = sorted({config for found in runs for _, config in found.choices})
    trainings = [(config, 1000 + seed) for config in configs for seed in range(seeds)]
    losses = in_processes(evaluate, trainings, processes)
    return {
        config: statistics.fmean(losses[seeds * index : seeds * (index + 1)]) for index, config in enumerate(configs)
    }


def write_table(runs: Sequence[Run], true: Mapping[Config, float]) -> None:
    with open(TABLE, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["side", "seed", "second", "loss", *SPACE])
        for found in runs:
            for second, config in found.choices:
                values = (f"{value:.4g}" for _, value in config)
                table.writerow([found.side, found.seed, f"{second:.1f}", f"{true[config]:.4f}", *values])


def describe_runs(runs: Sequence[Run], true: Mapping[Config, float]) -> Iterator[Row]:
    """Yield the figures of each run."""
    for found in runs:
        recipe = next(other for other in runs if (other.side, other.seed) == ("recipe", found.seed))
        row: Row = {"side": SIDES[found.side], "seed": found.seed}
        if found.choices:
            row |= {"first_choice": round(found.choices[0][0]), "loss": true[found.choices[-1][1]]}
        if found.choices and recipe.choices:
            target = true[recipe.choices[-1][1]]
            reached = (round(second) for second, config in found.choices if true[config] <= target)
            row["as_recipe"] = next(reached, None)
        counts = {"trials": found.trials, "whole": found.full, "epochs": found.epochs}
        yield row | counts | {"load_before": round(found.load[0], 1), "load_after": round(found.load[1], 1)}


def describe_means(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the means over the runs of each side that chose something."""
    for side in SIDES.values():
        if own := [row for row in rows if row["side"] == side and "loss" in row]:
            losses = [row["loss"] for row in own]
            yield {
                "side": side,
                "runs": len(own),
                "first_choice": round(statistics.fmean(row["first_choice"] for row in own)),
                "loss": statistics.fmean(losses),
                "loss_low": min(losses),
                "loss_high": max(losses),
                **{key: round(statistics.fmean(row[key] for row in own)) for key in ("trials", "whole", "epochs")},
            }


def plot(path: Path) -> None:
    """Draw the true value of each side's choice over time, from the table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    until = max(float(row["second"]) for row in rows)
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6), dpi=110)
    for side, name in SIDES.items():
        for seed in sorted({row["seed"] for row in rows}):
            if not (own := [row for row in rows if (row["side"], row["seed"]) == (side, seed)]):
                continue  # it chose nothing
            seconds = [float(row["second"]) for row in own] + [until]
            losses = [float(row["loss"]) for row in own] + [float(own[-1]["loss"])]
            label = name if seed == "0" else None
            axes.step(seconds, losses, where="post", color=COLORS[side], linewidth=1.6, alpha=0.85, label=label)
    axes.set(xlabel="seconds since the start of the process", ylabel="true loss of the choice", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--true-seeds", type=int, default=3, help="trainings for the true value of a config")
    parser.add_argument("--processes", type=int, default=2, help="that evaluate the chosen configs")
    parser.add_argument("--record", action="store_true", help=f"write {TABLE.name} and {PICTURE.name} again")
    parser.add_argument("--plot", type=Path, help="draw the recorded run, and run nothing")
    given = parser.parse_args()
    if given.plot:
        return plot(given.plot)
    runs = []
    for seed in range(given.seeds):
        for side in SIDES:
            runs.append(run(side, seed, given.seconds))
            print_progress(f"{len(runs)} of {given.seeds * len(SIDES)} runs")
    true = compute_true_values(runs, given.true_seeds, given.processes)
    if given.record:
        write_table(runs, true)
        plot(PICTURE)
    rows = list(describe_runs(runs, true))
    figures: dict[str, Table] = {"runs": rows, "means": list(describe_means(rows))}
    about = f"{given.seconds:g} s on {os.cpu_count()} cores; true values under {given.true_seeds} other seeds"
    print_result(figures, {"first_choice": "s", "as_recipe": "s"}, about)


if __name__ == "__main__":
    main()
