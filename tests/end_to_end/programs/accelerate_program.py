"""Trains with Accelerate. The learning rate is a literal, so that no option changes it."""

import argparse

from accelerate import Accelerator


def train(config, args):
    accelerator = Accelerator(cpu=True, mixed_precision=args.mixed_precision)
    for epoch in range(1, config["num_epochs"] + 1):
        accelerator.print(f"epoch {epoch}:", {"score": config["lr"] + 1 / epoch})
    accelerator.end_training()
    accelerator.print("after training")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])
    config = {"lr": 2e-5, "num_epochs": 4}
    train(config, parser.parse_args())


if __name__ == "__main__":
    main()
