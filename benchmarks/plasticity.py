"""Measure what each plasticity rule contributes to the liquid task.

A rule adds synapses. "fixed" has the same synapses at their random initial weights, with a rule too slow to change
them. The difference of a rule from "fixed" is its own effect. The difference of "fixed" from "none" is the effect of
more synapses. "homeostasis alone" is "fixed" with neurons that are held at their target rate.

All variants have the same seeds, so differences are paired, +- their standard error. Scores are those after the last
task. "firing" is the rate of the neurons behind plastic synapses in the last epoch. "bound" is the share of plastic
weights at a bound. Everything else is the task's default.

    python benchmarks/plasticity.py [--data digits] [--epochs 15] [--seeds 10] [--rates 1] [--processes 2]
    python benchmarks/plasticity.py --data text --epochs 10 --seeds 5 --rules homeostatic "homeostatic, meta"
"""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.task_runs import Report, difference, mean, train_all
from searchlight.trainables.liquid import LiquidTask

STILL = 1e-12  # a rate that moves nothing
RULES: dict[str, Mapping[str, Any]] = {
    "pair": {"rule": "pair"},
    "triplet": {"rule": "triplet"},
    "homeostatic": {"rule": "homeostatic"},
    "bcm": {"rule": "bcm"},
    "pair, meta": {"rule": "pair", "meta": True},
    "homeostatic, meta": {"rule": "homeostatic", "meta": True},
    "pair, stiff": {"rule": "pair", "stiffness": 2.0},
}
CONTROLS: dict[str, Mapping[str, Any]] = {
    "none": {"rule": "none"},
    "fixed": {"rule": "pair", "rate": STILL},
    "homeostasis alone": {"rule": "homeostatic", "rate": STILL},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    variants = dict(CONTROLS)
    for rate in arguments.rates:
        variants |= {f"{name}, rate {rate:g}": {**RULES[name], "rate": rate} for name in arguments.rules}
    fixed = {"data": arguments.data, "epochs": arguments.epochs}
    configs = [fixed | {"plasticity": variant} for variant in variants.values()]
    results = train_all(LiquidTask, configs, arguments.seeds, arguments.processes, which="last")
    none, still = results[:2]
    print(f"{arguments.data}: {arguments.epochs} epochs, {arguments.seeds} seeds")
    print(f"{'':26}{'score':>8}{'forgot':>8}{'firing':>8}{'bound':>7}{'score less none':>20}{'score less fixed':>20}")
    for name, reports in zip(variants, results, strict=True):
        row = f"{mean(reports, 'val/score'):8.4f}{mean(reports, 'val/forgetting'):8.4f}{_plastic(reports)}"
        against = "".join(f"{difference(reports, base, 'val/score'):>20}" for base in (none, still))
        print(f"{name:26}{row}{against}")


def _plastic(reports: list[Report]) -> str:
    if "train/plasticity_0_firing" not in reports[0]:
        return f"{'-':>8}{'-':>7}"
    return f"{mean(reports, 'train/plasticity_0_firing'):8.3f}{mean(reports, 'train/plasticity_0_bound'):7.2f}"


if __name__ == "__main__":
    main()
