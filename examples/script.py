"""An argparse script as people have it, without a line of Searchlight: handwritten digits of scikit-learn.

searchlight run --search lr=1e-4..1:log --search width=16..256:log --search dropout=0..0.5 --trials 20 --set epochs=9 \
    --objective error:min --metric 'error=test error: ([0-9.]+)' -- python examples/script.py --seed {seed}

On two CPUs, it printed:

    14 completed, 6 pruned in 1:22
    best: trial 14, error 0.05084 estimated over 2 new seeds, 90 % interval 0.03278 to 0.06998
      trial 14 beats the defaults by 0.052 (90 % interval 0.033 to 0.07, 2 seeds)
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32, device=device)
    y = torch.tensor(labels, device=device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(device)
    train, test = order[:600], order[600:]
    model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Dropout(args.dropout), nn.Linear(args.width, 10)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in train[torch.randperm(len(train), device=device)].split(32):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = (model(x[test]).argmax(1) != y[test]).float().mean().item()
        print(f"epoch {epoch} test error: {error:.4f}")


if __name__ == "__main__":
    main()
