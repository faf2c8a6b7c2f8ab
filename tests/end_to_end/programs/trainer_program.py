"""Trains with the Trainer of transformers, whose arguments are its options. It reports nothing itself."""

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None):
        y = self.layer(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
trainer = Trainer(
    Model(),
    arguments,
    train_dataset=rows,
    eval_dataset=rows,
    compute_metrics=lambda _: {"score": arguments.learning_rate + 1 / max(1, round(trainer.state.epoch))},
)
trainer.train()
print("after training")
