"""Search the task `lm` at small widths for a large one, and compare it with direct searches there.

By default, the ladder has five widths over a factor of 16 in parameters. The large width is the last one, if --target
does not name another. A direct search at that width spends FACTOR times what the ladder spent. The settings of both,
and the best one of the smallest width unchanged, then train under new seeds. "law from" is what the same trials predict
if a published exponent of the rate is the start. The whole takes hours on a CPU, and continues where it was ended.

    python benchmarks/models/lm_ladder.py FOLDER [--factors 1,5] [--trials 24] [--seeds 5] [--set samples=800]
    python benchmarks/models/lm_ladder.py FOLDER --widths 48,72,96 --target 192
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import (
    Row,
    Table,
    add_settings,
    create_parser,
    load_or_measure,
    parse_settings,
    print_progress,
    print_result,
)
from searchlight.search.config import SearchConfig
from searchlight.search.experiment import ladder, runner
from searchlight.search.folder.locations import list_sized_searches
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.training.trainer import train

WIDTHS = "48,72,96,144,192"
SPACE = {
    "lr": "1e-4..3e-2:log",
    "embedding_lr": "1e-3..1e-1:log",
    "weight_decay": "1e-3..1:log",
    "warmup": "0.01..0.4",
}
MUP = -1.0  # the exponent of the rate of matrices over the width, for Adam: arXiv 2203.03466
FIRST_SEED = 1000  # of the comparison, which no search uses


def search_ladder(folder: Path, widths: str, target: str, trials: int, fixed: Mapping[str, str]) -> ladder.LadderResult:
    """Return the result of the searches at all widths, of which those that ended are not run again."""
    if list_sized_searches(folder / "ladder"):
        return ladder.resume(folder / "ladder")
    config = {**build_options(folder, "ladder", fixed), "sizes": f"width={widths}", "trials": trials, "confirm": 0}
    if target != widths.split(",")[-1]:
        config["target"] = f"width={target}"
    return ladder.run(SearchConfig(**config))


def search_directly(folder: Path, width: str, hours: float, factor: int, fixed: Mapping[str, str]) -> dict[str, Any]:
    """Return the best values of a search at `width` alone that spends so many hours of all workers."""
    name = f"direct{factor}"
    if (folder / name / "search.yaml").exists():
        result = runner.resume(name, folder)
    else:
        options = build_options(folder, name, {**fixed, "width": width})
        config = SearchConfig(**options, trials=10_000, gpu_hours=factor * hours, confirm=0)
        result = runner.run(config)
    assert result.best is not None
    return {name: result.best.config[name] for name in SPACE}


def build_options(folder: Path, name: str, fixed: Mapping[str, str]) -> dict[str, Any]:
    values = {"heads": "3", "optimizer": "adamw", "precision": "fp32", **fixed}
    return {"task": "lm", "storage": folder, "name": name, "search": SPACE, "set": values}


def train_setting(
    folder: Path, width: str, values: Mapping[str, Any], fixed: Mapping[str, str], seeds: int
) -> list[float]:
    """Return the best objective of each of `seeds` trainings, from the folder if it is there."""

    def measure(settings: Mapping[str, Any]) -> Row:
        reports = train(LmTask(LmConfig.model_validate(settings)))
        return {"loss": min(report["val/bpb"] for report in reports)}

    losses = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        settings = {"heads": 3, "optimizer": "adamw", "precision": "fp32", **fixed, **values, "width": width}
        name = hashlib.sha256(f"{sorted(settings.items())} {seed}".encode()).hexdigest()[:16]
        row = load_or_measure(folder / "trained" / f"{name}.json", partial(measure, {**settings, "seed": seed}))
        losses.append(row["loss"])
        print_progress(f"{dict(values)}, seed {seed}: {losses[-1]:.4f}")
    return losses


def describe(setting: str, hours: float, values: Mapping[str, Any], losses: Sequence[float]) -> dict[str, Any]:
    spread = stdev(losses) if len(losses) > 1 else 0.0
    row = {"setting": setting, "hours": hours, "mean": mean(losses), "deviation": spread, "seeds": len(losses)}
    return {**row, **{name: float(value) for name, value in values.items()}}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where the searches are kept")
    parser.add_argument("--widths", default=WIDTHS)
    parser.add_argument("--target", help="the width of the comparison")
    parser.add_argument("--trials", type=int, default=24, help="at the smallest width")
    parser.add_argument("--factors", default="1,5", help="of the cost of the ladder, for direct searches")
    parser.add_argument("--seeds", type=int, default=5)
    add_settings(parser)
    given = parser.parse_args()
    fixed, folder, width = parse_settings(given), given.folder.absolute(), given.target or given.widths.split(",")[-1]
    found = search_ladder(folder, given.widths, width, given.trials, fixed).ladder
    assert found.law is not None
    if found.target != {"width": float(width)}:
        sys.exit(f"FOLDER must have no ladder for another target, but {folder} has one for {found.target}.")
    hours = sum(search.gpu_seconds for search in found.searches) / 3600
    predicted = {name: each.value for name, each in found.law.predict(found.target).items()}
    settings = {"law": (hours, predicted), "unscaled": (found.searches[0].gpu_seconds / 3600, found.unscaled)}
    started = replace(found, exponents={"lr": {"width": MUP}}).law
    assert started is not None
    settings[f"law from lr/width={MUP}"] = (hours, {n: each.value for n, each in started.predict(found.target).items()})
    for factor in map(int, given.factors.split(",")):
        settings[f"direct, {factor} times"] = (factor * hours, search_directly(folder, width, hours, factor, fixed))
    rows = [
        describe(name, spent, values, train_setting(folder, width, values, fixed, given.seeds))
        for name, (spent, values) in settings.items()
    ]
    exponents: Table = [
        {"parameter": name, "exponent": each.value, "low": each.low, "high": each.high}
        for name, own in found.law.exponents.items()
        for each in own.values()
    ]
    print_result(
        {"settings": rows, "exponents": exponents}, {"hours": "h"}, "bits per byte, intervals of exponents 90 %"
    )


if __name__ == "__main__":
    main()
