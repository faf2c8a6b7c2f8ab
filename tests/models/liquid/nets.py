"""Small networks and small streams."""

from typing import Any

import torch

from searchlight.models.data import Domain, Kind, Samples, Source
from searchlight.models.liquid.continual import Scenario
from searchlight.models.liquid.network import LiquidNetwork
from searchlight.models.liquid.plasticity import Pair, PlasticSynapses
from searchlight.models.liquid.spiking import LIF
from searchlight.models.liquid.task_stream import Stream, build_stream


def network(features: int = 3, outputs: int = 4, answers: Any = "step", **options: Any) -> LiquidNetwork:
    """Two blocks whose neurons spike readily, with plastic synapses between them."""
    sizes = {"width": 8, "layers": 2, "units": 8, "spikes": 6, "cell": "cfc"}
    parts: dict[str, Any] = {
        "neurons": lambda count: LIF(count, threshold=0.2),
        "synapses": lambda pre, post: PlasticSynapses(pre, post, Pair(), rate=10.0),
    }
    return LiquidNetwork(features, outputs, answers, **{**sizes, **parts, **options})


def labeled(classes: int = 4, each: int = 6, tested: int = 3) -> Source:
    """Sequences of 5 steps that are near to the center of their class; of each class `each` to train on."""
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(classes, 5, 3, generator=generator)

    def samples(count: int) -> Samples:
        labels = torch.arange(classes).repeat(count)
        return Samples(centers[labels] + 0.1 * torch.randn(len(labels), 5, 3, generator=generator), labels)

    return Source("labels", "clouds", classes, 3, classes, (Domain("clouds", samples(each), samples(tested)),))


def continued(kind: Kind, domains: int = 4, trained: int = 6) -> Source:
    """Domains of bytes or of irregularly sampled values, with 5 steps in a sequence."""
    generator = torch.Generator().manual_seed(2)

    def samples(count: int) -> Samples:
        if kind == "bytes":
            data = torch.randint(256, (count * 5 + 1,), generator=generator, dtype=torch.uint8)
            return Samples(data[:-1].view(count, 5), data[1:].view(count, 5))
        values = torch.randn(count, 6, 1, generator=generator)
        return Samples(values[:, :-1], values[:, 1:], torch.rand(count, 5, 1, generator=generator) + 0.5)

    parts = tuple(Domain(f"d{number}", samples(trained + number), samples(3)) for number in range(domains))
    return Source(kind, "made", *((256, 0, 256) if kind == "bytes" else (0, 1, 1)), parts)


def of(kind: Kind, tasks: int = 2, scenario: Scenario = "class") -> tuple[Stream, LiquidNetwork]:
    """A stream of that kind, and a network that can learn it."""
    made = build_stream(labeled() if kind == "labels" else continued(kind), tasks, scenario)
    answers = "sequence" if kind == "labels" else "step"
    return made, network(made.features, made.outputs, answers)
