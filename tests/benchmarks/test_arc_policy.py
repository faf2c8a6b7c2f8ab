"""The orders that the benchmark of the policy of the task `arc` compares are those of a trained policy."""

import torch

from benchmarks.models.arc_policy import REFINED, refine, train_one
from tests.trainables.arc.small_arc import KEPT, SMALL

CONFIG = {**SMALL, "dropout": 0.5, "epochs": 1}


def test_trained_policy_gives_the_order_that_its_trial_reported():
    task = train_one(CONFIG, 0, KEPT)
    reported = task.order
    for _ in range(2):
        assert torch.equal(task.order_all()[1], reported)


def test_refined_order_keeps_what_was_executed_and_tries_each_operation_once():
    task = train_one(CONFIG, 0, KEPT)
    _, orders = task.order_all()
    order = refine(task, task.asked, 0, orders[0])
    assert torch.equal(order[: REFINED[0]], orders[0][: REFINED[0]])
    assert torch.equal(order.sort().values, orders[0].sort().values)
