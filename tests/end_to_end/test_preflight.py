"""Audit tasks from the command line, alone and at the start of a search."""

import json

import pytest

FROZEN = """
import torch
from toy import Toy


class Frozen(Toy):
    def loss(self, batch):
        model = self.modules["model"]
        with torch.no_grad():
            hidden = model[1](model[0](batch[0]))
        return torch.nn.functional.mse_loss(model[2](hidden), batch[1]), len(batch[0])
"""
HALF_BUILT = """
import torch
from toy import Toy


class HalfBuilt(Toy):
    def build(self):
        super().build()
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=-1.0)}
"""
RECURRENT = """
import torch
from toy import Toy


class Recurrent(Toy):
    def build(self):
        super().build()
        self.modules["lstm"] = torch.nn.LSTM(1, 1)
        self.optimizers["lstm"] = torch.optim.SGD(self.modules["lstm"].parameters(), lr=0.1)

    def loss(self, batch):
        hidden, _ = self.modules["lstm"](batch[0][..., None])
        answers = self.modules["model"](batch[0]) + hidden[:, -1]
        return torch.nn.functional.mse_loss(answers.float(), batch[1]), len(batch[0])
"""
ON_DEVICE = """
import torch
from searchlight.trainables.task import Task, TaskConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Config(TaskConfig):
    is_moved: bool = True


class OnDevice(Task[Config]):
    objective = "val/loss"

    def build(self):
        self.x = torch.ones(8, 2, device=DEVICE)
        self.modules = {"model": torch.nn.Linear(2, 1)}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=0.1)}

    def train_batches(self, epoch):
        return self.context.shard(self.x, 4)

    def loss(self, batch):
        return self.modules["model"](batch).square().mean(), len(batch)

    def evaluate(self):
        x = self.x if self.config.is_moved else torch.ones(8, 2)
        return {"val/loss": self.modules["model"](x).mean().item()}


def train(config):
    model = torch.nn.Linear(2, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    while True:
        loss = model(torch.ones(4, 2)).mean()
        loss.backward()
        optimizer.step()
"""
FOUND = "module-under-no-grad  model.0: no gradient in"


@pytest.fixture
def cli(make_cli):
    cli = make_cli()
    cli.has_preflight = True
    (cli.folder / "frozen.py").write_text(FROZEN)
    return cli


def test_preflight_of_a_faulty_task_tells_it_and_exits_with_1(cli):
    done = cli.invoke("frozen.py:Frozen", "--preflight")
    assert done.returncode == 1
    assert done.stdout.startswith(f"error   {FOUND}")
    assert done.stdout.splitlines()[-1] == "preflight: 1 error on cpu"


def test_preflight_of_a_healthy_task_gives_costs_for_a_dry_run(cli):
    done = cli.invoke("toy.py:Toy", "--preflight", "--json", "epochs=2")
    assert done.returncode == 0, done.stdout
    audit = json.loads(done.stdout)
    assert audit["costs"][0]["epoch_s"] > 0
    assert audit["estimate"]["device_hours"][0] > 0
    assert "worker-hours" in cli.invoke("toy.py:Toy", "--dry-run", "epochs=2").stdout


def test_check_on_a_simulated_gpu_tells_the_line_and_exits_with_1(cli):
    (cli.folder / "on_device.py").write_text(ON_DEVICE)
    options = "check", "--device", "cuda", "--set"
    done = cli.invoke(*options, "is_moved=true", "on_device.py:OnDevice", script="search/cli.py")
    assert (done.returncode, done.stdout) == (0, "preflight: nothing found on a simulated GPU\n"), done.stderr
    for task, line in (("OnDevice", "line 28, in evaluate"), ("train", "line 35, in train")):
        value = "lr=0.1" if task == "train" else "is_moved=false"
        done = cli.invoke(*options, value, f"on_device.py:{task}", script="search/cli.py")
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.startswith(f"error   wrong-device  on_device.py, {line}: Expected all tensors")


def test_check_at_sizes_compares_the_activations_of_modules(cli):
    done = cli.invoke("check", "growing.py:Growing", "--sizes", "8,16", "--json", script="search/cli.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [finding["name"] for finding in json.loads(done.stdout)["findings"]] == ["keeps-its-size"]
    refused = cli.invoke("check", "toy.py:Toy", "--sizes", "8,16", script="search/cli.py")
    assert refused.returncode == 2
    assert refused.stderr == "--sizes must be like width=64,128,256, because Toy declares no size.\n"


@pytest.mark.slow
def test_search_over_a_faulty_task_does_not_start(cli):
    options = ["frozen.py:Frozen", "--trials", "2", "--concurrency", "1", "--set", "epochs=2", "precision=fp32"]
    done = cli.start(*options, "--name", "refused")
    out, err = done.communicate(timeout=300)
    assert done.returncode == 2, out
    assert FOUND in err
    assert "Nothing was trained. Correct the task and run " in err
    assert "completed" not in err


@pytest.mark.slow
def test_search_trains_all_trials_once_the_task_is_corrected(cli):
    file = cli.folder / "half.py"
    file.write_text(HALF_BUILT)
    options = ["--trials", "3", "--concurrency", "2", "--confirm", "0", "--set", "epochs=1", "precision=fp32"]
    refused = cli.invoke("half.py:HalfBuilt", *options, "--name", "half")
    assert refused.returncode == 2, refused.stdout
    assert "build-fails  half.py, line 9, in build: ValueError: Invalid learning rate: -1.0" in refused.stderr
    assert "If a --set or --search is wrong, begin a new search: a resumed one keeps them." in refused.stderr
    file.write_text(HALF_BUILT.replace("lr=-1.0", "lr=0.1"))
    resumed = cli.invoke("--resume", "half", "--json")
    assert json.loads(resumed.stdout)["outcomes"] == {"completed": 3}, resumed.stderr


@pytest.mark.slow
def test_precision_that_the_cpu_lacks_leaves_the_search(cli):
    (cli.folder / "recurrent.py").write_text(RECURRENT)
    cli.env |= {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # oneDNN then has no LSTM in bf16
    search = ["recurrent.py:Recurrent", "--trials", "2", "--set", "epochs=1"]
    line = "bf16 is left out of the search: its workers cannot run the task in it: RuntimeError: could not create a"
    refused = cli.run(*search, "precision=bf16", "--name", "refused")
    assert refused.returncode == 2, refused.stdout
    assert "precision must be one in which the workers can run the task, but got bf16" in refused.stderr
    assert not (cli.folder / "runs" / "refused").exists()
    done = cli.run(*search, "--name", "narrowed")
    assert done.returncode == 0, done.stderr
    assert line in done.stderr
    assert line in (cli.folder / "runs" / "narrowed" / "report.html").read_text(encoding="utf-8")
    assert "failed" not in done.stdout
