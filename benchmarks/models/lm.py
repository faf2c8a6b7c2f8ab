"""Compare the task `lm` on its default corpus with n-grams, in a few minutes.

The script prints the bits per byte of the whole held-out part after each epoch. Lower is better.

    python benchmarks/models/lm.py [--set optimizer=muon --set lr=0.01]
"""

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from searchlight.models.liquid.data import bits_per_byte
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.lm.data import ORDERS
from searchlight.trainables.training.trainer import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the task's config")
    given = dict(part.split("=", 1) for part in parser.parse_args().set)
    torch.set_num_threads(1)
    task = LmTask(LmConfig.model_validate({"test_samples": 10**6, **given}))
    start, reports = time.process_time(), list(train(task))
    seconds = time.process_time() - start
    corpus, config = task.corpus, task.config
    weights = sum(parameter.numel() for parameter in task.model.parameters())
    trained = config.samples * config.length * config.epochs
    print(f"text of {len(corpus.train):,} bytes, and {len(corpus.test):,} that are held out")
    for order, bits in enumerate(bits_per_byte(corpus.train.numpy(), corpus.test.numpy(), ORDERS), start=1):
        print(f"{order}-gram {bits:10.4f}")
    told = " ".join(f"{name}={value}" for name, value in given.items()) or "the defaults"
    print(f"lm, {told}: {weights:,} weights, {trained:,} bytes in {seconds:.0f} s of one core")
    for number, report in enumerate(reports, start=1):
        print(f"epoch {number:<3}{report['val/bpb']:8.4f}")


if __name__ == "__main__":
    main()
