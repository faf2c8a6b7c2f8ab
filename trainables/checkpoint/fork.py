"""Continues a trial from another trial's checkpoint with different hyperparameters, as in population-based training."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from searchlight.trainables.task import Task


def initial_state(task: Task[Any], plateaus: list[ReduceLROnPlateau]) -> dict[str, Any]:
    """Return the states of optimizers, schedules and loss scales before training."""
    updaters = {
        name: {
            "optimizers": {
                key: {
                    "kind": type(optimizer).__name__,
                    "param_groups": optimizer.state_dict()["param_groups"],
                }
                for key, optimizer in updater.optimizers.items()
            },
            "schedulers": [_get_schedule_state(scheduler) for scheduler in updater.schedulers],
            "loss_scale": updater.loss_scale.state_dict() if updater.loss_scale else None,
        }
        for name, updater in task.updaters.items()
    }
    return copy.deepcopy({"updaters": updaters, "plateaus": [_get_schedule_state(plateau) for plateau in plateaus]})


def check_shapes(task: Task[Any], saved: Mapping[str, Any]) -> None:
    """Check that the weights of `saved`, the checkpoint of another trial, fit `task`.

    Raises:
        ValueError: The task's hyperparameters lead to other shapes.
    """
    for key, module in task.modules.items():
        for name, parameter in module.named_parameters():
            theirs = saved["modules"].get(key, {}).get(name)
            if theirs is None or theirs.shape != parameter.shape:
                found = "none" if theirs is None else tuple(theirs.shape)
                raise ValueError(
                    f"{key}.{name} of a copy must have the shape that it has in the trial that is copied, {found}, "
                    f"but got {tuple(parameter.shape)}. Fix the parameter that changes it with --set."
                )


def adapt_state(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `saved`, the checkpoint of another trial, as if trained with this trial's hyperparameters.

    A learning rate that its schedule has lowered to a tenth becomes a tenth of this trial's own. Schedules and loss
    scales keep what training changed; the rest is this trial's own. Optimizers and schedules of another type start
    without a state.

    Args:
        saved: Holds under "built" the `initial_state` of the other trial.
        own: The `initial_state` of this trial.
    """
    theirs = saved["built"]
    updaters = {}
    for name, state in saved["updaters"].items():
        mine, built = own["updaters"][name], theirs["updaters"][name]
        optimizers = {
            key: _adapt_optimizer(optimizer, mine["optimizers"][key], built["optimizers"][key])
            for key, optimizer in state["optimizers"].items()
        }
        schedulers = _adapt_schedules(state["schedulers"], mine["schedulers"], built["schedulers"])
        scale = _merge_states(state["loss_scale"], mine["loss_scale"], built["loss_scale"])
        updaters[name] = {**state, "optimizers": optimizers, "schedulers": schedulers, "loss_scale": scale}
    plateaus = _adapt_schedules(saved["plateaus"], own["plateaus"], theirs["plateaus"])
    return {**saved, "updaters": updaters, "plateaus": plateaus}


def _get_schedule_state(scheduler: Any) -> dict[str, Any]:
    return {"kind": type(scheduler).__name__, "state": scheduler.state_dict()}


def _adapt_optimizer(saved: Mapping[str, Any], own: Mapping[str, Any], built: Mapping[str, Any]) -> dict[str, Any]:
    if own["kind"] != built["kind"]:
        return {"state": {}, "param_groups": own["param_groups"]}
    groups = []
    pairs = _pair_groups(own["param_groups"], built["param_groups"], len(saved["param_groups"]))
    for number, (group, (mine, theirs)) in enumerate(zip(saved["param_groups"], pairs, strict=True)):
        settings = mine
        if number >= len(built["param_groups"]):  # training added it
            settings = {key: _merge_states(value, mine.get(key), theirs.get(key)) for key, value in group.items()}
        lr = _scale_lr(group["lr"], _get_initial_lr(mine), _get_initial_lr(theirs))
        groups.append({**settings, "params": group["params"], "lr": lr})
    return {"state": saved["state"], "param_groups": groups}


def _pair_groups(own: list[Any], built: list[Any], count: int) -> list[tuple[Any, Any]]:
    """Pair what `count` groups have in both trials. Groups that training added are paired as the first one."""
    pairs = [*zip(own, built, strict=True)]
    return pairs + pairs[:1] * (count - len(pairs))


def _adapt_schedules(saved: list[Any], own: list[Any], built: list[Any]) -> list[Any]:
    if [schedule["kind"] for schedule in own] != [schedule["kind"] for schedule in built]:
        return [schedule["state"] for schedule in own]
    return [_merge_states(s, o["state"], b["state"]) for s, o, b in zip(saved, own, built, strict=True)]


def _merge_states(saved: Any, own: Any, built: Any) -> Any:
    """Return the parts of `saved` that differ from `built`, and the rest from `own`."""
    if _is_equal(saved, built):
        return own
    parts = (saved, own, built)
    if all(isinstance(part, dict) for part in parts) and saved.keys() == own.keys() == built.keys():
        merged = {key: _merge_states(saved[key], own[key], built[key]) for key in saved}
        if "base_lrs" in saved and "_last_lr" in saved:
            pairs = _pair_groups(own["base_lrs"], built["base_lrs"], len(saved["_last_lr"]))
            merged["_last_lr"] = [_scale_lr(lr, *pair) for lr, pair in zip(saved["_last_lr"], pairs, strict=True)]
        return merged
    if all(isinstance(part, list) for part in parts) and len(saved) == len(own) == len(built):
        return [_merge_states(*items) for items in zip(*parts, strict=True)]
    return saved


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_is_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    return type(first) is type(second) and bool(first == second)


def _get_initial_lr(group: Mapping[str, Any]) -> Any:
    return group.get("initial_lr", group["lr"])


def _scale_lr(lr: Any, own: Any, theirs: Any) -> Any:
    return own if not theirs or lr == theirs else lr * float(own / theirs)
