"""A Lightning module, trained by Lightning's Trainer with the callback of Ray Train, on one GPU or several.

Lightning accumulates gradients itself, so the exact window of Searchlight's own tasks does not apply.

    searchlight run examples/lightning_module.py:train_fn --objective val_loss:min \
        --search lr=1e-4..1e-1:log --set epochs=9

With --trials 6 --concurrency 1, on CPUs, it printed:

    1 completed, 5 pruned in 2:06
    best: trial 2, val_loss 0.06476 estimated over 2 new seeds, 90 % interval -0.1194 to 0.2976
"""

import os

import lightning
import ray.train
import ray.train.lightning
import torch


class Regression(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def train_fn(config):
    x = torch.randn(320, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin())
    training, held_out = torch.utils.data.Subset(data, range(256)), torch.utils.data.Subset(data, range(256, 320))
    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="auto",
        devices="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    loaders = [torch.utils.data.DataLoader(part, batch_size=16) for part in (training, held_out)]
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(Regression(config["lr"]), *loaders)
    else:
        with checkpoint.as_directory() as folder:
            trainer.fit(Regression(config["lr"]), *loaders, ckpt_path=os.path.join(folder, "checkpoint.ckpt"))
