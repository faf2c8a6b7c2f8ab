"""A task of your own. Replace its parts, one after the other, by yours.

    searchlight run {file}:MyTask --trials 20

searches over the parameters that `searchable` declares, and over the precision mode. More:
`--search hidden=8..64` searches another parameter, `--set lr=1e-3` fixes one, `--help` shows all options.
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from searchlight import Task, TaskConfig, searchable

Batch = tuple[torch.Tensor, torch.Tensor]


class MyConfig(TaskConfig):
    """The parameters. Each value is the default, with which the first trial is trained."""

    micro_batch_field = "batch_size"  # a trial that runs out of memory continues with smaller micro-batches
    # TaskConfig has more, such as epochs, precision, accumulation (micro-batches of an update) and seed.
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    hidden: int = 16
    batch_size: int = 32


class MyTask(Task[MyConfig]):
    """One training: its model, its data, its loss and its evaluation."""

    objective, mode = "val/loss", "min"  # a key of what `evaluate` returns

    def build(self) -> None:
        """Create the model, the optimizer and the data of one trial."""
        hidden = self.config.hidden
        model = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}
        # Load your data here.
        x = torch.randn(512, 4, generator=torch.Generator().manual_seed(0)).to(self.context.device)
        y = x.sum(1, keepdim=True).sin()
        self.train, self.validation = (x[:384], y[:384]), (x[384:], y[384:])

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the micro-batches of one epoch. With several workers, each gets its share."""
        return self.context.shard(self.train, self.config.batch_size)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Return the mean loss of a micro-batch, and the number of elements that the mean was taken over."""
        x, y = batch
        return functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics after an epoch. The model is in eval mode, and no gradients are recorded."""
        x, y = self.validation
        return {"val/loss": functional.mse_loss(self.modules["model"](x), y).item()}
