"""A text-conditioned diffusion model with averaged weights (EMA), in fp32, bf16 or fp16.

Three errors of such trainers cannot happen here. A NaN loss skips the window and does not reach the averages. A loss
that is a constant without a gradient fails the trial at its first update. The device is the one that the search chose.

    searchlight run examples/diffusion.py:Diffusion --search precision=fp32,bf16

With --trials 6 --concurrency 1, on CPUs, it printed:

    1 completed, 5 pruned in 0:36
    best: trial 1, val/noise_loss 0.4386 estimated over 2 new seeds, 90 % interval 0.4026 to 0.4747
      trial 1 beats the defaults by 0.054 (90 % interval 0.034 to 0.072, 2 seeds)
"""

import torch

from searchlight import Task, TaskConfig, searchable

WORDS = ["row", "column", "square", "cross"]


class DiffusionConfig(TaskConfig):
    lr: float = searchable(3e-3, low=1e-4, high=3e-2, log=True)
    ema_decay: float | None = searchable(0.95, low=0.5, high=0.999)
    width: int = 64


def draw_images(samples, generator):
    """Return images of shape (samples, 64) with values of -1 and 1, and the index of the word that describes each."""
    word = torch.randint(len(WORDS), (samples,), generator=generator)
    at = torch.randint(1, 7, (samples, 2), generator=generator)
    row, column = torch.arange(8)[None, :, None] - at[:, :1, None], torch.arange(8)[None, None, :] - at[:, 1:, None]
    on_row, on_column = (row == 0).expand(-1, 8, 8), (column == 0).expand(-1, 8, 8)
    shapes = torch.stack([on_row, on_column, (row.abs() <= 1) & (column.abs() <= 1), on_row | on_column], 1)
    return 2.0 * shapes[torch.arange(samples), word].flatten(1) - 1, word


class Denoiser(torch.nn.Module):
    """Predicts the noise in images of shape (batch, 64) from the time in [0, 1] and the word."""

    def __init__(self, width):
        super().__init__()
        self.words, self.time = torch.nn.Embedding(len(WORDS), width), torch.nn.Linear(1, width)
        self.into, self.out = torch.nn.Linear(64, width), torch.nn.Linear(width, 64)
        self.block = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(width, width), torch.nn.SiLU())

    def forward(self, image, time, word):
        return self.out(self.block(self.into(image) + self.words(word) + self.time(time)))


class Diffusion(Task[DiffusionConfig]):
    objective, mode = "val/noise_loss", "min"

    def build(self):
        generator = torch.Generator().manual_seed(0)
        self.train, self.held_out = draw_images(2048, generator), draw_images(512, generator)
        # Each evaluation uses the same noise, so that reports differ by the weights alone.
        self.noise, self.time = torch.randn(512, 64, generator=generator), torch.rand(512, 1, generator=generator)
        model = Denoiser(self.config.width)
        self.modules = {"denoiser": model}
        self.optimizers = {"denoiser": torch.optim.AdamW(model.parameters(), self.config.lr)}

    def train_batches(self, epoch):
        return self.context.shard(self.train, batch_size=64)

    def noise_loss(self, image, word, noise, time):
        # A cosine schedule: Nichol and Dhariwal, Improved Denoising Diffusion Probabilistic Models, 2021.
        angle = time * torch.pi / 2
        predicted = self.modules["denoiser"](angle.cos() * image + angle.sin() * noise, time, word)
        return torch.nn.functional.mse_loss(predicted.float(), noise)

    def loss(self, batch):
        image, word = batch
        noise, time = torch.randn_like(image), torch.rand(len(image), 1, device=image.device)
        return self.noise_loss(image, word, noise, time), len(image)

    def evaluate(self):
        parts = [part.to(self.context.device) for part in (*self.held_out, self.noise, self.time)]
        return {"val/noise_loss": self.noise_loss(*parts).item()}
