"""What each rule of plasticity contributes to the liquid task: trainings with it, without it, and with synapses that it
does not change.

A rule comes with synapses of its own. "fixed" has them, random as they are made, with a rule too slow to move them: the
difference from it is what a rule does, the difference of "fixed" from "none" is what more synapses do. All variants
have the same seeds, so a difference is that of pairs, +- its standard error. Scores are those after the last task.
Everything else is the task's default.

    python benchmarks/plasticity.py [--data digits] [--epochs 15] [--seeds 10] [--rates 1 10 100] [--processes 2]
"""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.task_runs import difference, mean, train_all
from trainables.liquid import LiquidTask

STILL = 1e-12  # a rate that moves nothing
RULES: dict[str, Mapping[str, Any]] = {
    "pair": {"rule": "pair"},
    "triplet": {"rule": "triplet"},
    "homeostatic": {"rule": "homeostatic"},
    "bcm": {"rule": "bcm"},
    "pair, meta": {"rule": "pair", "meta": True},
    "pair, stiff": {"rule": "pair", "stiffness": 2.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 10.0, 100.0])
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    variants: dict[str, Mapping[str, Any]] = {"none": {"rule": "none"}, "fixed": {"rule": "pair", "rate": STILL}}
    for rate in arguments.rates:
        variants |= {f"{name}, rate {rate:g}": {**rule, "rate": rate} for name, rule in RULES.items()}
    fixed = {"data": arguments.data, "epochs": arguments.epochs}
    configs = [fixed | {"plasticity": variant} for variant in variants.values()]
    results = train_all(LiquidTask, configs, arguments.seeds, arguments.processes, which="last")
    none, still = results[:2]
    print(f"{arguments.data}: {arguments.epochs} epochs, {arguments.seeds} seeds")
    print(f"{'':22}{'score':>8}{'forgot':>9}{'score less none':>21}{'score less fixed':>21}")
    for name, reports in zip(variants, results, strict=True):
        row = f"{mean(reports, 'val/score'):8.4f}{mean(reports, 'val/forgetting'):9.4f}"
        against = "".join(f"{difference(reports, base, 'val/score'):>21}" for base in (none, still))
        print(f"{name:22}{row}{against}")


if __name__ == "__main__":
    main()
