"""Trains with LightningCLI."""

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader


class Model(LightningModule):
    def __init__(self, learning_rate: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch).mean()

    def validation_step(self, batch):
        self.log("score", self.hparams.learning_rate + 1 / (self.current_epoch + 1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.learning_rate)

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 1))

    val_dataloader = train_dataloader


if __name__ == "__main__":
    cli = LightningCLI(Model, run=False)
    cli.trainer.fit(cli.model)
    print("after training")
