"""Builds searches by hand for tests of the page."""

import random
from datetime import datetime, timedelta

from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord

START = datetime(2026, 5, 4, 12, 0, 0)
STATES = {
    "completed": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "interrupted": TrialState.RUNNING,
}
SCORE = (Objective("val/score", "max"),)
SPACE = {"lr": FloatDistribution(1e-4, 1e-1, log=True), "precision": CategoricalDistribution(["fp32", "bf16", "fp16"])}


def trial(
    number, outcome="completed", scores=(), params=None, reason="", metrics=None, began=0.0, epoch_s=10.0, gang=None,
    divergence=None, space=SPACE,
):  # fmt: skip
    """A trial whose epochs take `epoch_s` each; `metrics` gives those of an epoch beside val/score."""
    params = {"lr": 0.01} if params is None else params
    start = START + timedelta(seconds=began)
    attributes = {"config": {"epochs": 9, **params}, "reason": reason}
    if outcome != "interrupted":
        attributes["outcome"] = outcome
    if divergence is not None:
        attributes["divergence"] = divergence
    for epoch, score in enumerate(scores, start=1):
        told = {"val/score": score, **(metrics(epoch) if metrics else {})}
        report = {"metrics": told, "checkpoint": f"{number}-{epoch}.pt", "time": start.timestamp() + epoch * epoch_s}
        attributes[f"report/{epoch}"] = {**report, **({"gang": gang, "seconds": epoch_s} if gang else {})}
    end = start + timedelta(seconds=len(scores) * epoch_s)
    if gang:
        attributes["stretch/1"] = {"gang": gang, "began": start.timestamp(), "ended": end.timestamp()}
    made = create_trial(
        state=STATES[outcome],
        value=max(scores) if outcome == "completed" else None,
        params=params,
        distributions={name: space[name] for name in params},
        user_attrs=attributes,
        intermediate_values=dict(enumerate(scores, start=1)),
    )
    made.number = number
    made.datetime_start, made.datetime_complete = start, None if outcome == "interrupted" else end
    return made


def search(trials, first=None, name="demo", objectives=SCORE, drivers=()):
    """A search of `trials`, whose defaults are the point `first`; `drivers` are the times of its drivers."""
    about = {"config": {"task": "my_task.py:MyTask"}, "first": [first] if first is not None else []}
    return SearchRecord(name, trials, objectives, about, drivers)


def many(count=60, epochs=9, gangs=4, seed=0):
    """A search like a real one: stopped at rungs, in three precisions, with what breaks off, and a pause of an hour."""
    draw = random.Random(seed)
    trials, free = [], [5.0] * gangs
    for number in range(count):
        lane = min(range(gangs), key=free.__getitem__)
        mode = ("fp32", "bf16", "fp16")[draw.randrange(3)] if number else "fp32"
        lr = 10 ** draw.uniform(-4, -1) if number else 0.003
        broke = mode == "fp16" and lr > 0.03
        outcome = "diverged" if broke else "failed" if draw.random() < 0.04 else "pruned"
        length = epochs if number == 0 or draw.random() < 0.15 else draw.choice([1, 1, 1, epochs // 3 or 1])
        outcome = "completed" if outcome == "pruned" and length == epochs else outcome
        top = 0.9 - 0.12 * abs(draw.gauss(0, 0.3) + (2.3 + (-4, -3, -2.5, -2)[number % 4]))
        scores = [round(top * (1 - 0.6 * 0.8**epoch) + draw.gauss(0, 0.01), 4) for epoch in range(1, length + 1)]

        def metrics(epoch, mode=mode, draw=draw):
            speed = {"fp32": 120, "bf16": 190, "fp16": 210}[mode] * draw.uniform(0.9, 1.1)
            memory = {"fp32": 11.5, "bf16": 6.4, "fp16": 6.1}[mode] + draw.uniform(0, 0.5)
            skipped = epoch * draw.randrange(3) if mode == "fp16" else 0
            amp = {"amp/skipped": skipped, "train/updates": 100 * epoch}
            return {"time/samples_per_s": speed, "sys/gpu_memory_gib": memory, **amp}

        began = free[lane] + 0.5 + (3600 if number >= count // 2 else 0)
        epoch_s = draw.uniform(3, 9)
        free[lane] += 0.5 + length * epoch_s
        reasons = {"diverged": "train/loss is not finite", "failed": f"RuntimeError: out of memory at {number}"}
        divergence = {"kind": "loss", "epoch": 1} if outcome == "diverged" else None
        gang, point = f"gang-{lane}-{number >= count // 2}", {"lr": lr, "precision": mode}
        reason = reasons.get(outcome, "")
        trials.append(trial(number, outcome, scores, point, reason, metrics, began, epoch_s, gang, divergence))
    start = START.timestamp()
    drivers = [(start, None), (start + 3600, None)]
    return search(trials, {"lr": 0.003, "precision": "fp32"}, "night-run", drivers=drivers)
