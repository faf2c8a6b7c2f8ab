"""The real libraries, as a program uses them. None of these programs knows of the search."""

import sys

import pytest

from searchlight.trainables.command.collector import ReportCollector
from tests.trainables.command.programs import run_command, run_program

pytestmark = pytest.mark.slow  # each starts a process that imports its library

SUMMARY_WRITER = """
import numpy, sys
from {module} import SummaryWriter
writer = SummaryWriter("logs")
writer.add_scalar("val/loss", numpy.array([0.5]), 3)
writer.add_scalar("reward", 1.5, global_step=numpy.int64(4))
writer.add_scalars("group", {{"a": 1, "b": 2}}, 5)
writer.close()
"""
WANDB = """
import wandb
run = wandb.init(project="x")
wandb.log({"loss": 0.5, "val": {"accuracy": 0.25}, "text": "high"})
run.log({"loss": 0.4}, step=7)
print(run.settings.mode)
wandb.finish()
"""
MLFLOW = """
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 0.5)
    mlflow.log_metrics({"a": 1, "b": 2}, step=3)
    client = mlflow.MlflowClient()
    client.log_metric(run.info.run_id, "loss", 0.3, step=4)
    client.log_batch(run.info.run_id, metrics=[mlflow.entities.Metric("loss", 0.2, 0, 5)])
"""
KERAS = """
import keras, numpy
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = numpy.ones((64, 2))
history = model.fit(x, x.sum(1), epochs=1000, batch_size=8, validation_split=0.25, verbose=0)
print(len(history.history["loss"]) < 1000)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(log_with="{logger}", project_dir="logs", cpu=True)
accelerator.init_trackers("x")
for step in range(3):
    accelerator.log({{"loss": 1 / (step + 1)}}, step=step)
accelerator.end_training()
"""
HUGGING_FACE = """
import sys, torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        output = self.layer(x).squeeze(-1)
        return {"loss": ((output - labels) ** 2).mean(), "logits": output}

data = [{"x": torch.rand(2), "labels": torch.tensor(0.5)} for _ in range(64)]
arguments = TrainingArguments(
    "out", num_train_epochs=int(sys.argv[1]), eval_strategy="epoch", eval_on_start=True, logging_steps=4, use_cpu=True,
    report_to="none", save_strategy="no", per_device_train_batch_size=8, disable_tqdm=True, dataloader_num_workers=1,
)
trainer = Trainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data[:16])
trainer.train()
trainer.evaluate()
trainer.save_model("saved")
if trainer.is_world_process_zero():
    print("saved at", trainer.state.global_step)
"""
LIGHTNING = """
import importlib, sys, torch
from torch.utils.data import DataLoader
lightning = importlib.import_module(sys.argv[2])

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = (self.layer(batch) ** 2).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", (self.layer(batch) ** 2).mean(), sync_dist=True)

    def test_step(self, batch, index):
        self.log("test_loss", (self.layer(batch) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

data = DataLoader(torch.rand(64, 2), 8)
trainer = lightning.Trainer(
    max_epochs=int(sys.argv[1]), check_val_every_n_epoch=2, logger=False, accelerator="cpu", devices=int(sys.argv[3]),
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
)
model = Model()
trainer.fit(model, data, data)
if trainer.is_global_zero:
    print("left in epoch", trainer.current_epoch)
trainer.test(model, data, verbose=False)
"""

# A thread of gloo may give back a tensor while Python ends, and then PyTorch ends the rank by SIGABRT.
END_RANK = """
import os
sys.stdout.flush()
os._exit(0)
"""


def steps_of(outcome, name):
    return [step for _, step, metrics in outcome.heard if name in metrics]


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard_is_heard(tmp_path, module):
    outcome = run_program(tmp_path, SUMMARY_WRITER.format(module=module))
    assert outcome.heard == [
        ("TensorBoard", 3, {"val/loss": 0.5}),
        ("TensorBoard", 4, {"reward": 1.5}),
        ("TensorBoard", 5, {"group/a": 1, "group/b": 2}),
    ]
    assert list((tmp_path / "logs").rglob("events.*"))


def test_wandb_is_heard_and_offline(tmp_path):
    outcome = run_program(tmp_path, WANDB)
    assert outcome.heard == [("W&B", None, {"loss": 0.5, "val.accuracy": 0.25}), ("W&B", 7, {"loss": 0.4})]
    assert "offline" in outcome.output.splitlines()


def test_mlflow_is_heard_once_by_all_its_ways(tmp_path):
    outcome = run_program(tmp_path, MLFLOW)
    assert outcome.heard == [
        ("MLflow", None, {"loss": 0.5}),
        ("MLflow", 3, {"a": 1, "b": 2}),
        ("MLflow", 4, {"loss": 0.3}),
        ("MLflow", 5, {"loss": 0.2}),
    ]


def test_accelerate_is_heard_once(tmp_path):
    outcome = run_program(tmp_path, ACCELERATE.format(logger="tensorboard"))  # by tensorboardX
    assert outcome.heard == [("Accelerate", step, {"loss": 1 / (step + 1)}) for step in range(3)], outcome.output


def test_keras_is_heard_and_stops(tmp_path):
    outcome = run_program(tmp_path, KERAS, stop_after=2, KERAS_BACKEND="torch")
    assert steps_of(outcome, "val_loss")[:2] == [1, 2]
    assert outcome.output.splitlines()[-1] == "True"


def test_evaluations_of_hugging_face_are_reports(tmp_path):
    outcome = run_program(tmp_path, HUGGING_FACE, "3")
    assert steps_of(outcome, "eval_loss") == [8, 16, 24, 24], outcome.output  # no model before its training
    collector = ReportCollector(["eval_loss"])
    reports = [report for found in outcome.measurements for report in collector.add(found)]
    assert [(report.step, report.replaces) for report in reports] == [(8, False), (16, False), (24, False)]
    assert {"loss", "grad_norm"} <= reports[0].metrics.keys()


def test_hugging_face_stops_in_order(tmp_path):
    outcome = run_program(tmp_path, HUGGING_FACE, "100000", stop_after=2)
    assert (outcome.code, outcome.could_stop) == (0, True)
    assert "saved at" in outcome.output
    assert (tmp_path / "saved" / "model.safetensors").exists()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_evaluations_of_lightning_are_heard(tmp_path, package):
    outcome = run_program(tmp_path, LIGHTNING, "4", package, "1")
    assert steps_of(outcome, "val_loss") == [16, 32], outcome.output  # every second epoch has one
    assert steps_of(outcome, "train_loss") == [8, 16, 24, 32]
    assert steps_of(outcome, "test_loss") == [32]
    assert {source for source, *_ in outcome.heard} == {"Lightning"}


def test_lightning_stops_in_order(tmp_path):
    outcome = run_program(tmp_path, LIGHTNING, "100000", "lightning.pytorch", "1", stop_after=2)
    assert (outcome.code, outcome.could_stop) == (0, True)
    assert "left in epoch" in outcome.output
    assert steps_of(outcome, "test_loss")


def test_only_rank_0_of_lightning_is_heard_and_all_ranks_stop(tmp_path):
    outcome = run_program(tmp_path, LIGHTNING + END_RANK, "100000", "lightning.pytorch", "2", stop_after=4)
    assert (outcome.code, outcome.could_stop) == (0, True), outcome.output
    assert outcome.output.count("left in epoch") == 1
    steps = steps_of(outcome, "val_loss")
    assert steps == sorted({*steps})


def test_only_rank_0_of_torchrun_is_heard_and_all_ranks_stop(tmp_path):
    (tmp_path / "program.py").write_text(HUGGING_FACE + END_RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    outcome = run_command(tmp_path, [*torchrun, "program.py", "100000"], stop_after=4)
    assert (outcome.code, outcome.could_stop) == (0, True), outcome.output
    assert outcome.output.count("saved at") == 1
    assert steps_of(outcome, "eval_loss")[:2] == [4, 8]
