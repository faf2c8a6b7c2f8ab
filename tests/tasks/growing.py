"""A task whose best learning rate is known at each width: 0.1 at 8, and then falling with the root of the width."""

import math
import random

from toy import Toy, ToyConfig

from searchlight import searchable


class GrowingConfig(ToyConfig):
    lr: float = searchable(1e-2, low=1e-3, high=1.0, log=True)
    width: int = searchable(8, size=True)


class Growing(Toy):
    config: GrowingConfig

    @classmethod
    def config_class(cls):
        return GrowingConfig

    def evaluate(self):
        best = math.log(0.1) - 0.5 * math.log(self.config.width / 8)
        noise = 1e-3 * random.Random(self.config.seed).gauss()
        loss = self.config.width**-0.1 + 0.05 * (math.log(self.config.lr) - best) ** 2 + noise
        return {**super().evaluate(), self.objective: loss}
