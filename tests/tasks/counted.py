"""A task of a user that writes down each window that it trains."""

import time
from pathlib import Path

from toy import Toy


class Counted(Toy):
    def train_batches(self, epoch):
        self.now = epoch
        for batch in self.context.shard((self.x[:64], self.y[:64]), batch_size=4):
            time.sleep(self.config.pause_s)
            yield batch

    def loss(self, batch):
        with Path(self.config.marker).open("a") as file:
            file.write(f"{self.now} {self.context.rank} {len(batch[0])} {batch[0].sum().item()}\n")
        return super().loss(batch)
