"""What is kept of a task when it has been learned, and that it helps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from searchlight.models.data import Kind
from searchlight.models.liquid.strategy import ContinualStrategy
from searchlight.models.liquid.task_stream import build_stream
from tests.models.liquid.nets import labeled, network, of

KINDS: list[Kind] = ["labels", "bytes", "values"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def move(past: ContinualStrategy) -> None:
    with torch.no_grad():
        for parameter in past.parameters.values():
            parameter += 0.1 * torch.randn_like(parameter)


def fisher(past: ContinualStrategy) -> dict[str, Tensor]:
    return past.hold.state_dict()["fisher"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_pulled_back_to_where_a_task_left_them(kind: Kind) -> None:
    stream, net = of(kind)
    assert ContinualStrategy(net, stream).compute_penalty() is None
    past = ContinualStrategy(net, stream, method="ewc", strength=10.0, remembered=4)
    move(past)
    assert past.compute_penalty() == 0
    assert past.recall(3, seeded()) is None
    past.finish_task(0, 4, seeded())
    there = {name: parameter.detach().clone() for name, parameter in past.parameters.items()}
    assert past.compute_penalty() == 0
    assert any(values.any() for values in fisher(past).values())
    move(past)
    penalty = past.compute_penalty()
    assert penalty > 0
    gradients = torch.autograd.grad(penalty, list(past.parameters.values()))
    for (name, parameter), gradient in zip(past.parameters.items(), gradients, strict=True):
        assert torch.allclose(gradient, 10.0 * fisher(past)[name] * (parameter - there[name]).detach(), atol=1e-6)


def test_the_fisher_of_a_task_leaves_masked_outputs_free() -> None:
    stream, net = of("labels", scenario="task")
    past = ContinualStrategy(net, stream, method="ewc", strength=1.0)
    past.finish_task(0, 100, seeded())
    bias = fisher(past)["head.bias"]
    assert (bias[:2] > 0).all()
    assert not bias[2:].any()


@pytest.mark.parametrize(("few", "count", "bound"), [(32, 20, 0.001), (0, 200, 0.05)], ids=["exact", "drawn"])
def test_fisher_of_labels_is_that_of_the_probabilities(few: int, count: int, bound: float, monkeypatch) -> None:
    """Of four labels that are all as likely, the Fisher of each bias is p - p^2."""
    monkeypatch.setattr("searchlight.models.liquid.strategy.FEW", few)
    made = build_stream(labeled(each=60), 1, "class")
    net = network(made.features, made.outputs, "sequence")
    net.head.weight.data.zero_()
    net.head.bias.data.zero_()
    past = ContinualStrategy(net, made, method="ewc", strength=1.0)
    past.finish_task(0, count, seeded())
    assert torch.allclose(fisher(past)["head.bias"], torch.full((4,), 3 / 16), atol=bound)


@pytest.mark.parametrize("samples", [5, 100])
def test_ranks_measure_together_what_one_would_measure_alone(samples: int) -> None:
    stream, net = of("labels")
    alone = ContinualStrategy(net, stream, method="ewc", strength=1.0, remembered=6)
    alone.finish_task(0, samples, seeded())
    sums: list[list[Tensor]] = []
    for rank in (0, 1):
        past = ContinualStrategy(net, stream, method="ewc", strength=1.0, remembered=6)
        past.finish_task(0, samples, seeded(), slice(rank, None, 2), sums.append)
        memories = [one.state_dict()["reservoir"] for one in (alone, past)]
        assert torch.equal(memories[0]["indices"], memories[1]["indices"])
    totals = [a + b for a, b in zip(*sums, strict=True)]
    assert totals[-1] == min(samples, stream.count_sequences(0))
    for one, total in zip(fisher(alone).values(), totals, strict=False):
        assert torch.allclose(one, total / totals[-1], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ewc", "si"])
def test_a_task_that_is_kept_leaves_no_trace_in_the_network(kind: Kind, method: Any) -> None:
    stream, net = of(kind)
    net.train()
    net.blocks[0].eval()
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    past = ContinualStrategy(net, stream, method=method, strength=1.0, remembered=4, with_logits=True)
    past.finish_task(0, 4, seeded())
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(part.any() for synapses in net.list_synapses() for part in synapses.get_pending())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("learned", "count"), [(1, 7), (3, 1), (4, 30)])
def test_recall_gives_the_asked_count_in_equal_shares(kind: Kind, learned: int, count: int) -> None:
    stream, net = of(kind, tasks=4)
    past = ContinualStrategy(net, stream, remembered=8)
    for task in range(learned):
        past.finish_task(task, 1, seeded(task))
    recalled = past.recall(count, seeded())
    assert recalled.logits is None
    shares = torch.bincount(recalled.tasks, minlength=4)
    assert shares.sum() == recalled.samples.size == count
    assert shares[:learned].max() - shares[:learned].min() <= 1
    for row, task in enumerate(recalled.tasks.tolist()):
        own = stream.select_rows(task, torch.arange(stream.count_sequences(task)))
        (place,) = (own.inputs == recalled.samples.inputs[row]).flatten(1).all(1).nonzero().flatten()
        for part, whole in zip(recalled.samples, own, strict=True):
            assert whole is None or torch.equal(part[row], whole[place])


@pytest.mark.parametrize("kind", KINDS)
def test_remembered_logits_are_those_of_the_learned_task(kind: Kind) -> None:
    stream, net = of(kind)
    past = ContinualStrategy(net, stream, remembered=8, with_logits=True)
    allowed = stream.allowed[0].expand(5, -1)
    past.finish_task(0, 1, seeded())
    then = past.recall(5, seeded(1))
    with torch.no_grad():
        answered = net(then.samples.inputs, then.samples.dt).outputs
    assert torch.allclose(then.logits, answered, atol=1e-5)
    assert past.measure_distance(answered, then.logits, allowed).max() < 1e-9
    move(past)
    past.finish_task(1, 1, seeded())  # which answers the new ones alone
    later = past.recall(30, seeded(1))
    with torch.no_grad():
        answered = net(later.samples.inputs, later.samples.dt).outputs
    each = past.measure_distance(answered, later.logits, stream.allowed[later.tasks])
    assert (each[later.tasks == 0] > 1e-4).all()
    assert (each[later.tasks == 1] < 1e-9).all()


def test_distance_is_a_mean_over_steps_and_allowed_outputs() -> None:
    stream, net = of("labels")
    past = ContinualStrategy(net, stream)
    allowed = torch.tensor([[True, True, False, False]])
    steps, logits = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    expected = (steps - logits)[..., :2].square().mean()
    assert torch.allclose(past.measure_distance(steps, logits, allowed), expected)
    assert torch.allclose(
        past.measure_distance(steps[:, 0], logits[:, 0], allowed), (steps - logits)[:, 0, :2].square().mean()
    )


@pytest.mark.parametrize(
    ("theirs", "own", "told"),
    [
        ({}, {"method": "si"}, "consolidates as this one does"),
        ({"method": "ewc"}, {"method": "si"}, "consolidates as this one does"),
        ({"remembered": 4}, {}, "replays as this one does"),
        ({"remembered": 4}, {"remembered": 4, "balanced": False}, "a reservoir's state must have"),
    ],
)
def test_the_state_of_another_method_is_refused(theirs: dict[str, Any], own: dict[str, Any], told: str) -> None:
    stream, net = of("labels")
    past = ContinualStrategy(net, stream, **theirs)
    past.finish_task(0, 2, seeded())
    with pytest.raises(ValueError, match=told):
        ContinualStrategy(net, stream, **own).load_state_dict(past.state_dict())


def test_samples_without_logits_are_answered_when_loaded() -> None:
    stream, net = of("labels")
    without = ContinualStrategy(net, stream, remembered=6)
    without.finish_task(0, 1, seeded())
    past = ContinualStrategy(net, stream, remembered=6, with_logits=True)
    past.load_state_dict(without.state_dict())
    recalled = past.recall(4, seeded())
    with torch.no_grad():
        assert torch.allclose(recalled.logits, net(recalled.samples.inputs).outputs, atol=1e-5)
    assert net.training
    assert not any(part.any() for synapses in net.list_synapses() for part in synapses.get_pending())
