"""Searchlight as pip installs it: in an environment of its own, started by its command, far from the repository."""

import shutil
import site
import subprocess
import sys
import zipfile

import pytest
from mlflow.tracking import MlflowClient

from tests.conftest import ROOT

PARTS = ("models", "search", "trainables")
TASK = """
import torch
from models import make_net
from toy import Toy


class Own(Toy):
    def build(self):
        super().build()
        self.modules = {"model": make_net()}
        self.optimizers = {"model": torch.optim.AdamW(self.modules["model"].parameters(), lr=self.config.lr)}
"""
MODELS = """
import torch


def make_net():
    return torch.nn.Linear(4, 1)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("models", "search", "searchlight", "trainables"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=folder, check=True)
    (path,) = (folder / "dist").iterdir()
    return path


def test_wheel_has_every_file_that_a_run_reads(wheel):
    names = {*zipfile.ZipFile(wheel).namelist()}
    files = {path for top in PARTS for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {f"searchlight/{path.relative_to(ROOT).as_posix()}" for path in files} <= names
    assert {"searchlight/__init__.py", "searchlight/py.typed"} <= names
    (metadata,) = {name.partition("/")[0] for name in names} - {"searchlight"}
    assert metadata.endswith(".dist-info"), "nothing else may clash with packages of users"


@pytest.mark.slow
def test_installed_command_searches_with_own_models(wheel, make_cli):
    """The task has a package `models` beside it. In the current folder, search.py would end every process."""
    cli = make_cli()
    tasks, environment = cli.folder / "tasks", cli.folder / "environment"
    tasks.mkdir()
    for file in ("toy.py", "beside.py"):
        (cli.folder / file).rename(tasks / file)
    (tasks / "own.py").write_text(TASK)
    (tasks / "models").mkdir()
    (tasks / "models" / "__init__.py").write_text(MODELS)
    (cli.folder / "search.py").write_text("raise SystemExit('this is no module of Searchlight')")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", wheel], check=True)
    program = environment / "bin" / "searchlight"
    environ = {key: value for key, value in cli.env.items() if key != "PYTHONPATH"}

    def run(*arguments):
        done = subprocess.run([program, *arguments], cwd=cli.folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ["--trials", "2", "--concurrency", "1", "--confirm", "0", "--name", "own"]
    options += ["--scheduler", "none", "epochs=2"]
    printed = run("run", "tasks/own.py:Own", *options, "--register", "own")
    assert "2 completed in" in printed
    assert "more: environment/bin/searchlight resume own --trials 4" in printed
    assert "train: environment/bin/searchlight run tasks/own.py:Own --once" in printed
    client = MlflowClient(f"sqlite:///{cli.folder}/runs/mlflow.db")
    assert client.search_logged_models([client.get_experiment_by_name("Own").experiment_id])
    assert run("report", "own").endswith(f"page: {cli.folder}/runs/own/report.html\n")
    assert run("--version").startswith("searchlight, version ")
    options = [
        "--search",
        "lr=1e-3..1:log",
        "--trials",
        "2",
        "--confirm",
        "0",
        "--set",
        "epochs=1",
        "--tracker",
        "none",
    ]
    metric = ["--objective", "error:min", "--metric", "error=test error: ([0-9.]+)"]
    shutil.copy(ROOT / "examples" / "script.py", cli.folder)
    assert "2 completed in" in run("run", *options, *metric, "--", environment / "bin" / "python", "script.py")
