"""A program that imports torch and transformers, and trains for no time. It logs when its own work begins and ends."""

import argparse
import json
import os
import time

import torch
from transformers import Trainer


def log(event: str) -> None:
    with open(os.environ["BENCH_LOG"], "a", encoding="utf-8") as file:
        file.write(f"{event} {time.time()}\n")


if __name__ == "__main__":
    log("first-update")
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    given, _ = parser.parse_known_args()  # Syne Tune adds an option
    loss = torch.tensor(given.lr).log10().add(2).square()
    print(f"loss {loss:.4f} {Trainer.__name__}")
    # As syne_tune.Reporter prints it, which takes seconds to import.
    print(
        f"[tune-metric]: {json.dumps({'loss': float(loss), 'st_worker_timestamp': time.time(), 'st_worker_iter': 0})}"
    )
    log("end")
