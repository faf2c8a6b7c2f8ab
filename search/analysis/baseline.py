"""What is told of a trial that others are measured against, such as that of the task's defaults."""

from typing import Any

from optuna.trial import FrozenTrial

from search.config.flatten import flatten
from search.study.trial import get_outcome, intermediate_values


def get_best_value_until(trial: FrozenTrial, epoch: int, mode: str) -> float | None:
    """The best (first) objective that `trial` had reported when it had trained `epoch` epochs."""
    values = [value for done, value in intermediate_values(trial).items() if done <= epoch]
    return (max if mode == "max" else min)(values) if values else None


def describe_end(trial: FrozenTrial) -> str:
    """As part of a sentence: "was pruned in epoch 3 (not among the best)"."""
    outcome, reason = get_outcome(trial), trial.user_attrs.get("reason", "")
    epochs = max(intermediate_values(trial), default=0)
    told = {
        "completed": f"ran to its end, epoch {epochs}",
        "pruned": f"was stopped after epoch {epochs}",
        "diverged": "diverged",
        "failed": "failed",
        "interrupted": f"had not ended, after epoch {epochs}" if epochs else "had not ended",
    }[outcome]
    return told + (f" ({reason})" if reason else "")


def get_flat_config(trial: FrozenTrial) -> dict[str, Any]:
    """The whole config of `trial` by dotted name; what it searched alone, if it ended before the rest was known."""
    return flatten(trial.user_attrs.get("config") or trial.params)
