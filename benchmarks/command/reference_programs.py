"""Run importing_program.py in turn as other tools run programs: in a loop (`loop`), `syne-tune` or `wandb`.

W&B's agent asks a server what to run. Here, functions in its place answer at once; the rest is the agent itself.

    python benchmarks/command/reference_programs.py loop|syne-tune|wandb TRIALS FOLDER
"""

import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

PROGRAM = Path(__file__).with_name("importing_program.py")


def draw_rates(trials: int) -> list[float]:
    generator = random.Random(0)
    return [10 ** generator.uniform(-4, -1) for _ in range(trials)]


def run_loop(trials: int) -> None:
    for rate in draw_rates(trials):
        subprocess.run([sys.executable, str(PROGRAM), "--lr", str(rate)], check=True)


def run_syne_tune(trials: int, folder: Path) -> None:
    os.environ["SYNETUNE_FOLDER"] = str(folder)
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import loguniform
    from syne_tune.optimizer.baselines import RandomSearch

    Tuner(
        trial_backend=LocalBackend(entry_point=str(PROGRAM)),
        scheduler=RandomSearch({"lr": loguniform(1e-4, 1e-1)}, metrics=["loss"], random_seed=0),
        stop_criterion=StoppingCriterion(max_num_trials_completed=trials),
        n_workers=1,
    ).run()


def run_wandb(trials: int, folder: Path) -> None:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SWEEP_ID": "bench"}
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it calls "python"
    import wandb
    from wandb.apis.public import sweeps
    from wandb.wandb_agent import Agent

    rates = draw_rates(trials)

    def answer(api: object, agent: str, metrics: object, running: dict[str, bool]) -> list[dict[str, Any]]:
        if running:
            return []
        if not rates:
            return [{"type": "exit"}]
        values = {"lr": {"value": rates.pop(0)}}
        return [{"type": "run", "run_id": f"run{len(rates)}", "program": str(PROGRAM), "args": values}]

    with (
        mock.patch.object(sweeps, "_sweep_with_runs", return_value=None),
        mock.patch.object(sweeps, "_register_agent", return_value={"id": "bench"}),
        mock.patch.object(sweeps, "_agent_heartbeat", answer),
        mock.patch.object(wandb, "Api"),
    ):
        Agent(None, multiprocessing.Queue(), sweep_id="bench").run()


def main(side: str, trials: int, folder: Path) -> None:
    if side == "loop":
        run_loop(trials)
    elif side == "syne-tune":
        run_syne_tune(trials, folder)
    else:
        run_wandb(trials, folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
