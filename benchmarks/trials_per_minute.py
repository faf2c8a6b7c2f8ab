"""Trials per minute and time to the first report, against the recipe that Ray documents.

The recipe: ray.tune.Tuner over a function that builds and fits a TorchTrainer, with OptunaSearch
(docs.ray.io, "Hyperparameter Tuning with Ray Tune"). Both sides run the same trials, two at a time, none stopped
early, one after the other in this process tree.

    python benchmarks/trials_per_minute.py [--trials 200] [--peer-trials 6]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

RECIPE = """
import os, sys, time
import optuna, ray, torch
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.search.optuna import OptunaSearch

sys.path.insert(0, {here!r})
START = time.time()


def loop(config):
    from tiny_task import EPOCHS, data

    x, y = data()
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(EPOCHS):
        for part in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(x), y).item()
        train.report({{"loss": loss, "reported_at": time.time()}})


def trial(config):
    name = "train-" + tune.get_context().get_trial_id()
    TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={{"CPU": 0.5}}),
        run_config=train.RunConfig(name=name, storage_path={out!r}, callbacks=[TuneReportCallback()]),
    ).fit()


ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False,
         runtime_env={{"env_vars": {{"PYTHONPATH": {paths!r}}}}})
results = tune.Tuner(
    tune.with_resources(trial, {{"CPU": 0.5}}),
    param_space={{"lr": tune.loguniform(1e-4, 1e-1)}},
    tune_config=tune.TuneConfig(
        metric="loss", mode="min", num_samples={trials}, max_concurrent_trials=2,
        search_alg=OptunaSearch(sampler=optuna.samplers.TPESampler(seed=0)),
    ),
    run_config=tune.RunConfig(name="recipe", storage_path={out!r}, verbose=0),
).fit()
frame = results.get_dataframe()
assert len(frame) == {trials} and results.num_errors == 0
first = min(result.metrics_dataframe["reported_at"].min() for result in results)
print("RESULT", time.time() - START, first - START)
"""


def recipe(trials: int) -> tuple[float, float]:
    """Seconds in all and seconds to the first report of the documented recipe."""
    with tempfile.TemporaryDirectory() as out:
        paths = f"{HERE}:{HERE.parent}"
        code = RECIPE.format(here=str(HERE), paths=paths, out=out, trials=trials)
        environment = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        match = re.search(r"RESULT (\S+) (\S+)", done.stdout)
        if match is None:
            sys.exit(f"the recipe failed:\n{done.stdout}\n{done.stderr}")
        return float(match[1]), float(match[2])


def ours(trials: int) -> tuple[float, float]:
    """Seconds in all and seconds to the first report of the same trials in a search."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(HERE.parent / "search" / "run.py"), f"{HERE / 'tiny_task.py'}:Tiny"]
        options = ["--trials", str(trials), "--concurrency", "2", "--scheduler", "none", "--json"]
        fixed = ["--set", "precision=fp32", "--storage", out, "--name", "bench"]
        start = time.time()
        done = subprocess.run([*command, *options, *fixed], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the search failed:\n{done.stderr}")
        seconds = time.time() - start
        assert json.loads(done.stdout)["outcomes"] == {"completed": trials}
        journal = (Path(out) / "bench" / "study.journal").read_text().splitlines()
        reports = [json.loads(line).get("user_attr", {}) for line in journal]
        times = [report["time"] for attrs in reports for key, report in attrs.items() if key.startswith("report/")]
        return seconds, min(times) - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="of the search")
    parser.add_argument("--peer-trials", type=int, default=6, help="of the recipe, which takes seconds for each")
    given = parser.parse_args()
    peer_s, peer_first_s = recipe(given.peer_trials)
    our_s, our_first_s = ours(given.trials)
    peer_rate, our_rate = 60 * given.peer_trials / peer_s, 60 * given.trials / our_s
    print(f"recipe: {given.peer_trials} trials in {peer_s:.1f} s, {peer_rate:.1f} per minute, start-up included")
    print(f"search: {given.trials} trials in {our_s:.1f} s, {our_rate:.1f} per minute, start-up included")
    print(f"trials per minute: {our_rate / peer_rate:.0f}x")
    print(f"first report: {our_first_s:.1f} s against {peer_first_s:.1f} s, {our_first_s / peer_first_s:.2f}x")


if __name__ == "__main__":
    main()
