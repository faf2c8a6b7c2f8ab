"""A training function of a user who comes from Ray Train. It knows nothing of a search."""

import os
import tempfile
from pathlib import Path

import ray.train
import ray.train.collective
import ray.train.torch
import torch
from beside import data


def train_fn(config):
    """As in Ray's guide: it goes on from its checkpoint, and saves one with each report."""
    device = ray.train.torch.get_device()
    x, y = data()
    model = ray.train.torch.prepare_model(
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    )
    inner = model.module if hasattr(model, "module") else model
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), map_location="cpu", weights_only=True)
        assert state["lr"] == config["lr"], "a checkpoint of another trial"
        start = state["epoch"]
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if ray.train.get_context().get_world_size() > 1:
        start = ray.train.collective.broadcast_from_rank_zero(start)
    dataset = torch.utils.data.TensorDataset(x[:64], y[:64])
    loader = torch.utils.data.DataLoader(dataset, batch_size=config.get("batch_size", 16), shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    for epoch in range(start, config.get("epochs", 3)):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        lost = Path(config.get("marker", ""))
        if "marker" in config and epoch == 1 and not lost.exists() and torch.distributed.get_rank() == 1:
            lost.touch()
            os._exit(1)
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            metrics = {
                "loss": torch.nn.functional.mse_loss(inner(x[64:].to(device)), y[64:].to(device)),
                "epoch": epoch,
            }
        metrics |= {"ranks": ray.train.get_context().get_world_size(), "seen": sum(len(i) for i, _ in loader)}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                state = {"epoch": epoch + 1, "lr": config["lr"], "model": inner.state_dict()}
                torch.save({**state, "optimizer": optimizer.state_dict()}, os.path.join(folder, "state.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)
