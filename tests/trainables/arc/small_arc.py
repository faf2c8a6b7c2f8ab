"""Build the task `arc` on the real puzzles, small enough for a fraction of a second."""

import functools
import json
from pathlib import Path
from typing import Any

import torch

from searchlight.models.arc.puzzles import Puzzle, load_puzzles
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.task import ArcConfig
from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer

SMALL: dict[str, Any] = {
    "max_side": 5,
    "width": 16,
    "policy_lr": 3e-3,
    "prompt_lr": 3e-3,
    "batch_size": 8,
    "episodes": 40,
    "epochs": 2,
    "gradient_check": "parameter",
    "prompt": {"dim": 16},
}
KEPT = Context()  # the results of programs and what a language model says are prepared once for all tests


def arc(task_class: type[ArcTask] = ArcTask, context: Context = KEPT, **config: Any) -> ArcTask:
    """Return a small task; `prompt` adds to what is small of it."""
    prompt = {**SMALL["prompt"], **config.pop("prompt", {})}
    return task_class(ArcConfig.model_validate({**SMALL, **config, "prompt": prompt}), context.for_next_trial())


def built(context: Context = KEPT, **config: Any) -> ArcTask:
    task = arc(context=context, **config)
    task.build()
    return task


def weights(training: TrialTrainer, name: str) -> dict[str, torch.Tensor]:
    """Return copies of the parameters of a module."""
    return {key: p.detach().clone() for key, p in training.task.modules[name].named_parameters()}


def moved(training: TrialTrainer, name: str, before: dict[str, torch.Tensor]) -> set[bool]:
    """Return whether parameters of a module differ from before: {True} if all do, {False} if none does."""
    return {not torch.equal(value, before[key]) for key, value in weights(training, name).items()}


@functools.cache
def generated(split: Any) -> tuple[Puzzle, ...]:
    return load_puzzles("generated", split, max_side=6)


def few(folder: Path, evaluation: int, first: int = 0) -> str:
    """Fill a folder with a few puzzles to train on, and `evaluation` to be asked, from the `first` on."""
    for split, chosen in ("training", slice(6)), ("evaluation", slice(first, first + evaluation)):
        (folder / split).mkdir(parents=True)
        for puzzle in generated(split)[chosen]:
            parts = {
                part: [{"input": source.tolist(), "output": target.tolist()} for source, target in pairs]
                for part, pairs in (("train", puzzle.demonstrations), ("test", puzzle.tests))
            }
            (folder / split / f"{puzzle.id}.json").write_text(json.dumps(parts))
    return str(folder)
