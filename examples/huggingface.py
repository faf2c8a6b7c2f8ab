"""Hugging Face's Trainer with the callback of Ray Train, as Ray's documentation has them.

Each trial resumes from its own checkpoint, although the callback looks for files in the current folder. Replace `Line`
by a model from a local folder, such as `AutoModelForSequenceClassification.from_pretrained("/models/bert")`.

    searchlight run examples/huggingface.py:train_fn --objective eval_loss:min \
        --search lr=1e-3..1e-1:log --set epochs=9
"""

import os

import ray.train
import torch
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from transformers import Trainer, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}


def train_fn(config):
    data = [{"x": x, "labels": 2 * x} for x in torch.linspace(-1, 1, 64)[:, None]]
    arguments = TrainingArguments(
        output_dir="test_trainer",
        num_train_epochs=config["epochs"],
        learning_rate=config["lr"],
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        disable_tqdm=True,
        report_to="none",
    )
    callbacks = [RayTrainReportCallback()]
    trainer = prepare_trainer(Trainer(Line(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks))
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.train()
    else:
        with checkpoint.as_directory() as folder:
            trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint"))
