"""Search the task of target_task.py with other tools, as their documentation says.

`recipe` is Ray's: ray.tune.Tuner over a function that builds and fits a TorchTrainer, with TuneReportCallback,
OptunaSearch, ASHAScheduler and MLflowLoggerCallback (docs.ray.io, "Hyperparameter Tuning with Ray Tune"). It saves no
checkpoints. `optuna` is one process with a loop of Optuna's, its TPESampler and its default pruner.

    python benchmarks/search/reference_searches.py recipe|optuna SEED SECONDS FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

import optuna
from target_task import DEFAULTS, EPOCHS, SPACE, train_plainly

HERE = Path(__file__).resolve().parent


def run_recipe(seed: int, seconds: float, folder: str) -> None:
    import ray
    from ray import train, tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    def loop(config: dict[str, Any]) -> None:
        train_plainly(config, 0, lambda epoch, loss: train.report({"loss": loss}))

    def trial(config: dict[str, Any]) -> None:
        TorchTrainer(
            loop,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.9}),
            run_config=train.RunConfig(
                name=f"train-{tune.get_context().get_trial_id()}", storage_path=folder, callbacks=[TuneReportCallback()]
            ),
        ).fit()

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "OMP_NUM_THREADS": "1"}},
    )
    space = {
        "lr": tune.loguniform(*SPACE["lr"]),
        "weight_decay": tune.loguniform(*SPACE["weight_decay"]),
        "width": tune.lograndint(SPACE["width"][0], SPACE["width"][1] + 1),
        "dropout": tune.uniform(*SPACE["dropout"]),
        "noise": tune.loguniform(*SPACE["noise"]),
    }
    tune.Tuner(
        tune.with_resources(trial, {"CPU": 0.1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=-1,
            time_budget_s=seconds,
            max_concurrent_trials=2,
            search_alg=OptunaSearch(sampler=optuna.samplers.TPESampler(seed=seed), points_to_evaluate=[DEFAULTS]),
            scheduler=ASHAScheduler(max_t=EPOCHS),
        ),
        run_config=tune.RunConfig(
            name="recipe",
            storage_path=folder,
            verbose=0,
            callbacks=[MLflowLoggerCallback(tracking_uri=f"sqlite:///{folder}/mlflow.db", experiment_name="recipe")],
        ),
    ).fit()


def run_optuna(seed: int, seconds: float) -> None:
    def objective(trial: optuna.Trial) -> float:
        config = {
            "lr": trial.suggest_float("lr", *SPACE["lr"], log=True),
            "weight_decay": trial.suggest_float("weight_decay", *SPACE["weight_decay"], log=True),
            "width": trial.suggest_int("width", *map(int, SPACE["width"]), log=True),
            "dropout": trial.suggest_float("dropout", *SPACE["dropout"]),
            "noise": trial.suggest_float("noise", *SPACE["noise"], log=True),
        }
        losses = []

        def report(epoch: int, loss: float) -> None:
            losses.append(loss)
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned

        train_plainly(config, 0, report)
        return min(losses)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(DEFAULTS)
    study.optimize(objective, timeout=seconds)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    side, chosen, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if side == "recipe":
        run_recipe(chosen, limit, sys.argv[4])
    else:
        run_optuna(chosen, limit)
