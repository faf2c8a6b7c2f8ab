"""A training function for Ray Train, which is searched as it is. It does not import Searchlight.

    searchlight run examples/ray_function.py:train_fn --objective loss:min \
        --search lr=1e-4..1e-1:log --search optimizer=adam,sgd --set epochs=9

With --trials 8 --concurrency 1, on CPUs, it printed:

    1 completed, 7 pruned in 0:25
    best: trial 2, loss 0.0495 estimated over 2 new seeds, 90 % interval -0.1476 to 0.2719
"""

import os
import tempfile

import ray.train
import ray.train.torch
import torch

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def train_fn(config):
    device, generator = ray.train.torch.get_device(), torch.Generator().manual_seed(0)
    x = torch.randn(320, 4, generator=generator)
    y = x.sum(1, keepdim=True).sin()
    layers = torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    model = ray.train.torch.prepare_model(torch.nn.Sequential(*layers))
    optimizer = OPTIMIZERS[config["optimizer"]](model.parameters(), lr=config["lr"])
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), map_location="cpu", weights_only=True)
        start = state["epoch"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dataset = torch.utils.data.TensorDataset(x[:256], y[:256])
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True))
    for epoch in range(start, config["epochs"]):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            held_out = torch.nn.functional.mse_loss(model(x[256:].to(device)), y[256:].to(device)).item()
        with tempfile.TemporaryDirectory() as folder:
            state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, os.path.join(folder, "state.pt"))
            ray.train.report({"loss": held_out}, checkpoint=ray.train.Checkpoint.from_directory(folder))
