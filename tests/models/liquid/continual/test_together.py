"""What the parts are for: a small network learns two tasks, and knows the first one afterwards, or does not."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.liquid.continual import (
    EWC,
    SI,
    Matrix,
    Reservoir,
    Scenario,
    allowed,
    class_groups,
    der_loss,
    fisher_diagonal,
    masked_logits,
    outputs,
    targets,
)
from tests.models.liquid.continual.labels import every_label

GROUPS = class_groups(4, 2)
SAMPLES = 60  # of each class


def stream(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Two tasks of two clouds each, in eight dimensions: inputs and labels, to learn from and to score."""
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(4, 8, generator=generator)
    tasks = []
    for group in GROUPS:
        labels = torch.tensor(group).repeat_interleave(SAMPLES)
        tasks.append((centres[labels] + torch.randn(len(labels), 8, generator=generator), labels))
    return tasks


def learn(scenario: Scenario, method: str = "naive", strength: float = 0.0, seed: int = 0) -> Matrix:
    """Learn both tasks, one after the other, by one of the methods."""
    torch.manual_seed(seed)
    draws, tasks = torch.Generator().manual_seed(seed), stream(seed)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, outputs(scenario, GROUPS)))
    parameters = dict(net.named_parameters())
    hold: Any = {"ewc": EWC, "si": SI}[method](parameters, strength) if method in ("ewc", "si") else None
    memory = Reservoir(20) if method in ("replay", "der") else None
    inputs = torch.stack([x for x, _ in tasks])
    masks = [allowed(scenario, GROUPS, task) for task in range(2)]
    right = [targets(scenario, GROUPS, labels) for _, labels in tasks]
    matrix = Matrix(2)

    def answer(task: int) -> Tensor:
        return masked_logits(net(tasks[task][0]), masks[task])

    def loss(task: int) -> Tensor:
        total = F.cross_entropy(answer(task), right[task])
        if hold is not None:
            total = total + hold.penalty()
        if memory is not None and memory.size:
            old = memory.draw(10, draws)
            logits = net(tasks[0][0][old.indices])
            total = total + F.cross_entropy(masked_logits(logits, masks[0]), right[0][old.indices])
            if method == "der":
                total = total + der_loss(logits, memory.logits(old.slots)).mean()
        return total

    def record(learned: int) -> None:
        with torch.no_grad():
            matrix.record(learned, [(answer(task).argmax(-1) == right[task]).float().mean().item() for task in (0, 1)])

    record(0)
    for task in range(2):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            loss(task).backward()
            if method == "si":
                hold.before_step()
            optimizer.step()
            if method == "si":
                hold.after_step()
        if method == "ewc":
            inputs_of = tasks[task][0]
            items = every_label(lambda x, task=task: masked_logits(net(x[None]), masks[task]), inputs_of)
            sums, _ = fisher_diagonal(parameters, items)
            hold.consolidate({name: values / len(inputs_of) for name, values in sums.items()})
        elif method == "si":
            hold.consolidate()
        elif memory is not None:
            memory.offer(task, len(right[task]), draws)
            entered = memory.missing()
            with torch.no_grad():
                memory.store(entered.slots, net(inputs[entered.tasks, entered.indices]))
        record(task + 1)
    return matrix


@pytest.mark.parametrize("method", ["replay", "der"])
def test_classes_that_are_not_replayed_are_forgotten(method: str) -> None:
    assert learn("class").forgetting > 0.7
    remembered = learn("class", method)
    assert remembered.forgetting < 0.15
    assert remembered.average > 0.85


@pytest.mark.parametrize(("method", "strength"), [("ewc", 1e3), ("si", 10.0)])
def test_a_hold_on_what_mattered_forgets_less_and_learns_still(method: str, strength: float) -> None:
    naive, held = ([learn("domain", *kind, seed=seed) for seed in range(3)] for kind in ((), (method, strength)))
    assert sum(m.forgetting for m in held) < 0.5 * sum(m.forgetting for m in naive)
    assert min(m.learning_accuracy for m in held) > 0.9
