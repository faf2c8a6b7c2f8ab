"""Compare the task `lm` on its default corpus with n-grams, in a few minutes.

Bits per byte are those of the whole held-out part. Lower is better.

    python benchmarks/models/lm.py [--set optimizer=muon --set lr=0.01]
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Table, add_settings, create_parser, parse_settings, print_result
from searchlight.models.data import compute_bits_per_byte
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.lm.data import ORDERS
from searchlight.trainables.training.trainer import train


def main() -> None:
    parser = create_parser(__doc__)
    add_settings(parser)
    settings = parse_settings(parser.parse_args())
    torch.set_num_threads(1)
    task = LmTask(LmConfig.model_validate({"test_samples": 10**6, **settings}))
    start, reports = time.process_time(), list(train(task))
    seconds = time.process_time() - start
    corpus, config = task.corpus, task.config
    ngrams = compute_bits_per_byte(corpus.train.numpy(), corpus.test.numpy(), ORDERS)
    figures: dict[str, Table] = {
        "text": {"bytes": len(corpus.train), "held_out": len(corpus.test)},
        "ngrams": [{"order": order, "bits_per_byte": float(bits)} for order, bits in enumerate(ngrams, start=1)],
        "training": {
            "config": " ".join(f"{name}={value}" for name, value in settings.items()) or "the defaults",
            "weights": sum(parameter.numel() for parameter in task.model.parameters()),
            "trained_bytes": config.samples * config.length * config.epochs,
            "cpu": seconds,
        },
        "epochs": [{"epoch": epoch, "bits_per_byte": report["val/bpb"]} for epoch, report in enumerate(reports, 1)],
    }
    print_result(figures, {"cpu": "s"}, digits=5)


if __name__ == "__main__":
    main()
