"""Run tiny trials with Ray Tune, in one of two ways.

`recipe` is what Ray documents: ray.tune.Tuner over a function that builds and fits a TorchTrainer, with
TuneReportCallback and OptunaSearch (docs.ray.io, "Hyperparameter Tuning with Ray Tune"). `inline` trains in the trial
itself.

    python benchmarks/driver/reference_tune.py recipe|inline TRIALS WORKERS AT_A_TIME FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

import optuna
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.search.optuna import OptunaSearch

HERE = Path(__file__).resolve().parent


def train_loop(config: dict[str, Any]) -> None:
    from tiny_task import train_plainly

    if workers := config["workers"]:
        rank, prepare = train.get_context().get_world_rank(), ray.train.torch.prepare_model
        train_plainly(config["lr"], lambda loss: train.report({"loss": loss}), rank, workers, prepare)
    else:
        train_plainly(config["lr"], lambda loss: tune.report({"loss": loss}))


def train_with_trainer(config: dict[str, Any]) -> None:
    TorchTrainer(
        train_loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=config["workers"], resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(
            name=f"train-{tune.get_context().get_trial_id()}",
            storage_path=config["folder"],
            callbacks=[TuneReportCallback()],
        ),
    ).fit()


def main(how: str, trials: int, workers: int, at_a_time: int, folder: str) -> None:
    paths = f"{HERE}:{HERE.parents[1]}"
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}},
    )
    space = {"lr": tune.loguniform(1e-4, 1e-1), "workers": workers if how == "recipe" else 0, "folder": folder}
    results = tune.Tuner(
        tune.with_resources(
            train_with_trainer if how == "recipe" else train_loop, {"CPU": 0.5 if how == "recipe" else 1}
        ),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=at_a_time,
            search_alg=OptunaSearch(sampler=optuna.samplers.TPESampler(seed=0)),
        ),
        run_config=tune.RunConfig(name="recipe", storage_path=folder, verbose=0),
    ).fit()
    if len(results) != trials or results.num_errors:
        sys.exit(f"{results.num_errors} of {len(results)} trials failed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
