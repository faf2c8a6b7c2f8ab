import json
import sys

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI


class Model(LightningModule):
    def __init__(self, learning_rate: float = 1e-3, hidden_dim: int = 16, use_bias: bool = False):
        super().__init__()
        self.save_hyperparameters()


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size


class Cli(LightningCLI):
    def fit(self, model, **more):
        print(json.dumps({"model": {**model.hparams}, "data": {"batch_size": self.datamodule.batch_size}}))
        sys.exit()


if __name__ == "__main__":
    Cli(Model, Data, run=True)
