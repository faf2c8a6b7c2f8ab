"""Show that networks neither wait for the GPU in a forward pass nor copy to it, on `meta` in the place of a GPU."""

from contextlib import nullcontext

import pytest
import torch

from searchlight.models.data import Kind
from searchlight.models.liquid.cells import CELLS
from searchlight.models.liquid.losses import measure_errors
from searchlight.models.liquid.plasticity import RULES, PlasticSynapses
from tests.models.host_traffic import HostTraffic
from tests.models.liquid.nets import network, of


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())  # `meta` has none


@pytest.mark.parametrize("cell", CELLS)
def test_network_on_a_device_has_no_traffic_with_the_host(cell: str) -> None:
    net = network(cell=cell).to("meta")
    x = torch.empty(2, 5, 3, device="meta")
    with HostTraffic() as traffic:
        net(x).outputs.sum().backward()
    assert (traffic.reads, traffic.copies) == ([], [])


@pytest.mark.parametrize("rule", RULES)
def test_observed_spikes_are_not_copied_from_the_host(rule: str) -> None:
    synapses = PlasticSynapses(4, 3, RULES[rule]()).to("meta")
    with HostTraffic() as traffic:
        synapses.observe(torch.empty(2, 5, 4, device="meta"), torch.empty(2, 5, 3, device="meta"))
    assert (traffic.reads, traffic.copies) == ([], [])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("spiking", [False, True])
def test_plastic_update_is_read_once_on_the_host(rule: str, spiking: bool) -> None:
    synapses = PlasticSynapses(4, 3, RULES[rule]())
    if spiking:
        synapses.observe(torch.ones(2, 5, 4), torch.ones(2, 5, 3))
    with HostTraffic() as traffic:
        told = synapses.update()
    assert traffic.reads == ["tolist"]
    assert (told is not None) == spiking


@pytest.mark.parametrize("kind", ["labels", "values", "bytes"])
def test_errors_of_all_batches_are_read_once(kind: Kind) -> None:
    stream, net = of(kind)
    (samples, *_) = stream.tests[0].values()
    with HostTraffic() as traffic:
        measure_errors(kind, net, samples, stream.allowed[0], 2)
    assert samples.size > 2
    assert traffic.reads == ["tolist"]
