"""What is kept of a task when it has been learned."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models.liquid.continual.strategy import ContinualStrategy
from models.liquid.data import Kind
from models.liquid.losses import losses
from models.liquid.task_stream import stream
from tests.models.liquid.nets import labelled, network, of

KINDS: list[Kind] = ["labels", "bytes", "values"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def move(past: ContinualStrategy) -> None:
    with torch.no_grad():
        for parameter in past.parameters.values():
            parameter += 0.1 * torch.randn_like(parameter)


def fisher(past: ContinualStrategy) -> dict[str, Tensor]:
    assert past.hold is not None
    return past.hold.state_dict()["fisher"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_held_or_recalled_before_a_task_has_been_learned(kind: Kind) -> None:
    stream, net = of(kind)
    past = ContinualStrategy(net, stream, method="ewc", strength=10.0, remembered=4)
    move(past)
    penalty = past.penalty()
    assert penalty is not None
    assert penalty == 0
    assert past.recall(3, seeded()) is None
    assert ContinualStrategy(net, stream).penalty() is None


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_free_where_a_task_left_them_and_pulled_back_from_elsewhere(kind: Kind) -> None:  # C100
    stream, net = of(kind)
    past = ContinualStrategy(net, stream, method="ewc", strength=10.0)
    past.learned(0, 4, seeded())
    there = {name: parameter.detach().clone() for name, parameter in past.parameters.items()}
    penalty = past.penalty()
    assert penalty is not None
    assert penalty == 0
    assert any(values.any() for values in fisher(past).values())
    move(past)
    penalty = past.penalty()
    assert penalty is not None
    assert penalty > 0
    gradients = torch.autograd.grad(penalty, list(past.parameters.values()))
    for (name, parameter), gradient in zip(past.parameters.items(), gradients, strict=True):
        assert torch.allclose(gradient, 10.0 * fisher(past)[name] * (parameter - there[name]).detach(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_need_different_weights(kind: Kind) -> None:  # C100
    stream, net = of(kind)
    found = []
    for task in (0, 1):
        past = ContinualStrategy(net, stream, method="ewc", strength=1.0)
        past.learned(task, 100, seeded())
        found.append(torch.cat([values.flatten() for values in fisher(past).values()]))
    assert (found[0] - found[1]).norm() > 0.05 * found[0].norm()


def test_the_fisher_of_a_task_that_masks_outputs_leaves_those_of_others_free() -> None:  # C100
    stream, net = of("labels", scenario="task")
    past = ContinualStrategy(net, stream, method="ewc", strength=1.0)
    past.learned(0, 100, seeded())
    bias = fisher(past)["head.bias"]
    assert (bias[:2] > 0).all()
    assert not bias[2:].any()


def test_labels_are_drawn_anew_for_each_sequence() -> None:
    """Of four labels that are all as likely, the Fisher of each bias is p - p^2."""
    made = stream(labelled(each=200), 1, "class")
    net = network(made.features, made.outputs, "sequence")
    net.head.weight.data.zero_()
    net.head.bias.data.zero_()
    past = ContinualStrategy(net, made, method="ewc", strength=1.0)
    past.learned(0, 300, seeded())
    assert torch.allclose(fisher(past)["head.bias"], torch.full((4,), 3 / 16), atol=0.05)


@pytest.mark.parametrize("samples", [4, 5, 100])
def test_ranks_measure_together_what_one_would_measure_alone(samples: int) -> None:
    stream, net = of("labels")
    alone = ContinualStrategy(net, stream, method="ewc", strength=1.0, remembered=6)
    alone.learned(0, samples, seeded())
    sums: list[list[Tensor]] = []
    for rank in (0, 1):
        past = ContinualStrategy(net, stream, method="ewc", strength=1.0, remembered=6)
        past.learned(0, samples, seeded(), slice(rank, None, 2), sums.append)
        memories = [one.state_dict()["reservoir"] for one in (alone, past)]
        assert torch.equal(memories[0]["indices"], memories[1]["indices"])
    totals = [a + b for a, b in zip(*sums, strict=True)]
    assert totals[-1] == min(samples, stream.size(0))
    for one, total in zip(fisher(alone).values(), totals, strict=False):
        assert torch.allclose(one, total / totals[-1], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ewc", "si"])
def test_a_task_that_is_kept_leaves_no_trace_in_the_network(kind: Kind, method: Any) -> None:  # C99
    stream, net = of(kind)
    net.train()
    net.blocks[0].eval()
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    past = ContinualStrategy(net, stream, method=method, strength=1.0, remembered=4, with_logits=True)
    past.learned(0, 4, seeded())
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(part.any() for synapses in net.synapses() for part in synapses.pending())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 7, 30])
def test_as_many_are_recalled_as_asked_for_and_of_each_task_as_many(kind: Kind, learned: int, count: int) -> None:
    stream, net = of(kind, tasks=4)  # C101
    past = ContinualStrategy(net, stream, remembered=8)
    for task in range(learned):
        past.learned(task, 1, seeded(task))
    recalled = past.recall(count, seeded())
    assert recalled is not None
    assert recalled.logits is None
    shares = torch.bincount(recalled.tasks, minlength=4)
    assert shares.sum() == recalled.samples.size == count
    assert shares[:learned].max() - shares[:learned].min() <= 1
    for row, task in enumerate(recalled.tasks.tolist()):
        own = stream.rows(task, torch.arange(stream.size(task)))
        same = (own.inputs == recalled.samples.inputs[row]).flatten(1).all(1).nonzero().flatten()
        assert len(same) == 1
        assert torch.equal(own.targets[same[0]], recalled.samples.targets[row])
        if own.dt is not None and recalled.samples.dt is not None:
            assert torch.equal(own.dt[same[0]], recalled.samples.dt[row])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_remembered_is_what_was_answered_when_its_task_had_been_learned(kind: Kind) -> None:
    stream, net = of(kind)
    past = ContinualStrategy(net, stream, remembered=8, with_logits=True)
    allowed = stream.allowed[0].expand(5, -1)
    past.learned(0, 1, seeded())
    then = past.recall(5, seeded(1))
    assert then is not None
    assert then.logits is not None
    with torch.no_grad():
        answered = net(then.samples.inputs, then.samples.dt).outputs
    assert torch.allclose(then.logits, answered, atol=1e-5)
    assert past.distance(answered, then.logits, allowed).max() < 1e-9
    move(past)
    past.learned(1, 1, seeded())  # which answers the new ones alone
    later = past.recall(30, seeded(1))
    assert later is not None
    assert later.logits is not None
    with torch.no_grad():
        answered = net(later.samples.inputs, later.samples.dt).outputs
    each = past.distance(answered, later.logits, stream.allowed[later.tasks])
    assert (each[later.tasks == 0] > 1e-4).all()
    assert (each[later.tasks == 1] < 1e-9).all()


def test_the_distance_to_remembered_answers_is_a_mean_over_steps_and_the_outputs_that_count() -> None:
    stream, net = of("labels")
    past = ContinualStrategy(net, stream)
    allowed = torch.tensor([[True, True, False, False]])
    steps, logits = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    expected = (steps - logits)[..., :2].square().mean()
    assert torch.allclose(past.distance(steps, logits, allowed), expected)
    assert torch.allclose(past.distance(steps[:, 0], logits[:, 0], allowed), (steps - logits)[:, 0, :2].square().mean())


@pytest.mark.parametrize("method", ["ewc", "si"])
def test_it_goes_on_from_its_state(method: Any) -> None:
    stream, net = of("labels", tasks=4)
    net.requires_grad_(True)

    def kept() -> ContinualStrategy:
        return ContinualStrategy(net, stream, method=method, strength=3.0, remembered=6, with_logits=True)

    first = kept()
    first.before_step()
    move(first)
    first.after_step(True)
    first.learned(0, 4, seeded())
    second = kept()
    second.load_state_dict(first.state_dict())
    outcomes = []
    for past in (first, second):
        torch.manual_seed(3)
        start = {name: parameter.detach().clone() for name, parameter in past.parameters.items()}
        answer = net(stream.samples.inputs)
        losses("labels", answer.outputs, stream.samples.targets, stream.allowed[0]).mean().backward()
        past.before_step()
        move(past)
        past.after_step(True)
        past.learned(1, 4, seeded(1))
        move(past)
        penalty, recalled = past.penalty(), past.recall(9, seeded(2))
        assert penalty is not None
        assert recalled is not None
        assert recalled.logits is not None
        outcomes.append((penalty.item(), recalled.tasks.tolist(), recalled.logits))
        with torch.no_grad():
            for name, parameter in past.parameters.items():
                parameter.copy_(start[name])
                parameter.grad = None
    assert outcomes[0][0] == outcomes[1][0] > 0
    assert outcomes[0][1] == outcomes[1][1]
    assert torch.equal(outcomes[0][2], outcomes[1][2])


def test_an_update_that_is_not_applied_has_no_part_in_what_mattered() -> None:  # C99
    stream, net = of("labels")
    past = ContinualStrategy(net, stream, method="si", strength=1.0)
    net(stream.samples.inputs).outputs.square().mean().backward()
    past.before_step()
    past.after_step(False)
    past.after_step(False)  # of an empty window, which no gradient came before
    assert past.hold is not None
    assert not any(path.any() for path in past.hold.state_dict()["path"].values())


@pytest.mark.parametrize(
    ("theirs", "own", "told"),
    [
        ({"method": "ewc"}, {}, "consolidates as this one does"),
        ({}, {"method": "si"}, "consolidates as this one does"),
        ({"method": "ewc"}, {"method": "si"}, "consolidates as this one does"),
        ({"method": "si"}, {"method": "ewc"}, "consolidates as this one does"),
        ({"remembered": 4}, {}, "replays as this one does"),
        ({"remembered": 4}, {"remembered": 4, "balanced": False}, "a reservoir's state must have"),
    ],
)
def test_the_state_of_another_method_is_refused(theirs: dict[str, Any], own: dict[str, Any], told: str) -> None:
    stream, net = of("labels")
    past = ContinualStrategy(net, stream, **theirs)
    past.learned(0, 2, seeded())
    with pytest.raises(ValueError, match=told):
        ContinualStrategy(net, stream, **own).load_state_dict(past.state_dict())


def test_what_was_remembered_without_answers_is_answered_when_it_is_taken_up_by_who_needs_them() -> None:
    stream, net = of("labels")
    without = ContinualStrategy(net, stream, remembered=6)
    without.learned(0, 1, seeded())
    past = ContinualStrategy(net, stream, remembered=6, with_logits=True)
    past.load_state_dict(without.state_dict())
    recalled = past.recall(4, seeded())
    assert recalled is not None
    assert recalled.logits is not None
    with torch.no_grad():
        assert torch.allclose(recalled.logits, net(recalled.samples.inputs).outputs, atol=1e-5)
    assert net.training
    assert not any(part.any() for synapses in net.synapses() for part in synapses.pending())
