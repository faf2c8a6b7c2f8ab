"""Run tiny trials with Optuna alone: all in this process (`optuna`), or each in a process of its own (`process`).

A process for each trial isolates failures, as the workers of a search do: a trial that crashes ends no other one.

    python benchmarks/driver/reference_optuna.py optuna|process TRIALS
"""

import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

import optuna
from tiny_task import train_plainly


def train(lr: float) -> float:
    return train_plainly(lr, lambda loss: None)


def send_loss(lr: float, parent: Connection) -> None:
    parent.send(train(lr))


def train_apart(lr: float) -> float:
    """Train in a new process, and raise EOFError if it ends without a loss."""
    context = get_context("spawn")  # a process that is forked after torch was used may wait forever
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=send_loss, args=(lr, theirs))
    process.start()
    theirs.close()
    loss: float = ours.recv()
    process.join()
    return loss


def main(how: str, trials: int) -> None:
    trial_loss = train if how == "optuna" else train_apart
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(lambda trial: trial_loss(trial.suggest_float("lr", 1e-4, 1e-1, log=True)), n_trials=trials)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
