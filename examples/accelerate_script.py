"""A loop of Accelerate that logs to W&B, while the search logs to MLflow: `accelerator.log` is heard without an option.

Without the first line, the runs of W&B are sent to its server.

export WANDB_MODE=offline
searchlight run --search lr=1e-4..1e-1:log --search mixed_precision=no,bf16 --set epochs=9 --trials 12 \
    --objective error:min -- accelerate launch examples/accelerate_script.py --seed {seed}

With --trials 6 --concurrency 1, on CPUs, it printed:

    4 completed, 2 pruned in 2:51
    best: trial 2, error 0.08488 estimated over 2 new seeds, 90 % interval 0.05011 to 0.1165
      trial 2 beats the defaults by 0.027 (90 % interval 0.019 to 0.035, 2 seeds)
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mixed_precision", choices=["no", "bf16", "fp16"], default="no")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with="wandb")
    accelerator.init_trackers("digits", config=vars(args))
    set_seed(args.seed)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, test = torch.utils.data.Subset(data, range(600)), torch.utils.data.Subset(data, range(600, len(data)))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train, test = accelerator.prepare(
        model, optimizer, DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=256)
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        wrong = []
        for x, y in test:
            with torch.no_grad():
                wrong.append(accelerator.gather_for_metrics(model(x).argmax(1) != y))
        accelerator.log({"error": torch.cat(wrong).float().mean().item()}, step=epoch)
    accelerator.end_training()


if __name__ == "__main__":
    main()
