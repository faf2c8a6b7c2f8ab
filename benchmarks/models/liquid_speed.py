"""Compare the speed of liquid cells and spiking neurons with those of other libraries.

A pass is forward over whole sequences and backward to weights and inputs. The models take turns, so that other load
affects all equally. The result of a model is the median of its passes. A ratio is the median over turns of the ratio to
the peer, with quartiles.

ncps supports time steps of single sequences only, so our cells with irregular steps are compared with its regular ones.
Its wired CfC masks neither the time gates nor the connections within a layer. "same wiring" is its cells with the masks
and weights of NCP, so that both compute the same. The time gates are masked once per pass.
spikingjelly declares torchvision, which it does not need here:

    pip install ".[dev]" loguru && pip install --no-deps spikingjelly
    python benchmarks/models/liquid_speed.py [--rounds 30] [--batch-size 8] [--steps 128] [--units 64] [--threads 1]
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import (
    Row,
    create_parser,
    describe_versions,
    get_quartiles,
    print_progress,
    print_result,
)
from searchlight.models.liquid.cells import NCP, CfC, Liquid
from searchlight.models.liquid.spiking import LIF

try:
    import ncps.torch
    import snntorch
    from ncps import wirings
except ModuleNotFoundError as error:
    sys.exit(f'{error.name} is missing, and this benchmark compares with it: pip install ".[dev]"')

WARM = 2

NCPS, NCPS_PLAIN, NCPS_WIRED = "ncps CfC, backbone 128", "ncps CfC", "ncps CfC, same wiring"
SNNTORCH, SPIKINGJELLY = "snntorch Leaky", "spikingjelly LIFNode"
DECAY = 0.9
FANS = ("sensory_fanout", "inter_fanout", "recurrent_command_synapses", "motor_fanin")

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """A model, how to run it, and its peers."""

    model: nn.Module
    run: Run
    peers: tuple[str, ...] = ()


def build_contenders(batch: int, steps: int, units: int, device: torch.device) -> dict[str, Contender]:
    """Build the models by name, peers first. Inputs are as wide as the layer."""
    dt = torch.rand(batch, steps, 1, device=device) + 0.5
    motor = max(1, units // 4)
    made: dict[str, Contender] = {}

    def add(name: str, model: nn.Module, *peers: str, run: Run | None = None) -> None:
        made[name] = Contender(model.to(device), run or (lambda x: model(x)[0]), peers)

    add("nn.LSTM", nn.LSTM(units, units, batch_first=True))
    add("nn.GRU", nn.GRU(units, units, batch_first=True))
    add(NCPS, ncps.torch.CfC(units, units))
    add(NCPS_PLAIN, ncps.torch.CfC(units, units, backbone_layers=0, backbone_units=0))
    circuit = NCP(units, units, motor).to(device)
    wired, masks = build_wired(circuit)
    add(NCPS_WIRED, wired.to(device), run=lambda x: run_masked(wired, masks, x))
    leaky = snntorch.Leaky(beta=DECAY, learn_beta=True, reset_delay=False).to(device)
    add(SNNTORCH, leaky, run=lambda x: run_steps(leaky, x))
    node = build_lif_node()
    if node is not None:
        add(SPIKINGJELLY, node, run=lambda x: run_all_steps(node, x))

    cell = CfC(units, units).to(device)
    add("CfC", cell, NCPS_PLAIN)
    add("CfC, irregular steps", cell, NCPS_PLAIN, run=lambda x: cell(x, None, dt)[0])
    liquid = Liquid(units, units).to(device)
    add("Liquid", liquid, NCPS, NCPS_PLAIN)
    add("Liquid, irregular steps", liquid, NCPS, NCPS_PLAIN, run=lambda x: liquid(x, None, dt)[0])
    add("NCP", circuit, NCPS_WIRED)
    add("LIF", LIF(units, decay=DECAY), SNNTORCH, *([SPIKINGJELLY] if node is not None else []))
    return made


@torch.no_grad()
def build_wired(circuit: NCP) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build ncps' wired CfC with the layers and weights of `circuit`. Return it and the masks of its time gates."""
    fans = dict.fromkeys(FANS, 1)  # which masks it draws does not matter
    other = ncps.torch.CfC(circuit.inputs, wirings.NCP(*circuit.widths, **fans))
    masks: dict[str, Tensor] = {}
    for number, layer in enumerate(circuit.layers):
        cell = other.rnn_cell.get_submodule(f"layer_{number}")
        cell.sparsity_mask.copy_(layer.mask)
        weights = torch.cat([layer.input.weight, layer.recurrent.weight], dim=1).chunk(4)
        heads = ("ff1", "ff2", "time_a", "time_b")
        for head, weight, bias in zip(heads, weights, layer.input.bias.chunk(4), strict=True):
            cell.get_submodule(head).weight.copy_(weight)
            cell.get_submodule(head).bias.copy_(bias)
        masks |= {f"rnn_cell.layer_{number}.{head}.weight": layer.mask for head in heads[2:]}
    return other, masks


def run_masked(wired: nn.Module, masks: dict[str, Tensor], x: Tensor) -> Tensor:
    weights = {name: wired.get_parameter(name) * mask for name, mask in masks.items()}
    return torch.func.functional_call(wired, weights, (x,))[0]


def run_steps(leaky: snntorch.Leaky, x: Tensor) -> Tensor:
    membrane, spikes = torch.zeros_like(x[:, 0]), []
    for current in x.unbind(1):
        spike, membrane = leaky(current, membrane)
        spikes.append(spike)
    return torch.stack(spikes, dim=1)


def build_lif_node() -> nn.Module | None:
    """Build spikingjelly's neuron with the same equations, or return None if that is not installed.

    The equations have a soft detached reset and an arc-tangent surrogate. Its decay is not learned.
    """
    try:
        from spikingjelly.activation_based import neuron, surrogate
    except ModuleNotFoundError as error:
        print_progress(f"{error.name} is missing, so {SPIKINGJELLY} is left out; see the top of this file")
        return None
    return neuron.LIFNode(
        tau=1 / (1 - DECAY),
        decay_input=False,
        v_reset=None,
        surrogate_function=surrogate.ATan(),
        detach_reset=True,
        step_mode="m",
    )


def run_all_steps(node: nn.Module, x: Tensor) -> Tensor:
    node.reset()
    return node(x.transpose(0, 1)).transpose(0, 1)


def time_pass(contender: Contender, x: Tensor) -> float:
    """Measure the seconds of one pass."""
    contender.model.zero_grad(set_to_none=True)
    x.grad = None
    synchronize(x.device)
    start = time.perf_counter()
    contender.run(x).sum().backward()
    synchronize(x.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(among: dict[str, Contender], x: Tensor, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in among}
    for turn in range(-WARM, rounds):
        for name, contender in among.items():
            passed = time_pass(contender, x)
            if turn >= 0:
                taken[name].append(passed)
    return taken


def describe_speeds(taken: dict[str, list[float]], tokens: int) -> Iterator[Row]:
    """Yield the milliseconds of a pass of each model, and the thousands of tokens per second."""
    for name, passes in taken.items():
        middle = statistics.median(passes)
        yield {"cell": name, "pass": 1e3 * middle, "tokens": tokens / middle / 1e3}


def describe_ratios(among: dict[str, Contender], taken: dict[str, list[float]]) -> Iterator[Row]:
    """Yield how many times as fast each model is as each of its peers."""
    for name, contender in among.items():
        for peer in contender.peers:
            low, median, high = get_quartiles(b / a for a, b in zip(taken[name], taken[peer], strict=True))
            yield {"cell": name, "peer": peer, "ratio": median, "low": low, "high": high}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--units", type=int, default=64, help="at least 6, and as many inputs")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    cells, ratios = [], []
    for device in ["cpu", *["cuda"] * torch.cuda.is_available()]:
        among = build_contenders(given.batch_size, given.steps, given.units, torch.device(device))
        x = torch.randn(given.batch_size, given.steps, given.units, device=device, requires_grad=True)
        taken = measure(among, x, given.rounds)
        own = {} if device == "cpu" else {"device": torch.cuda.get_device_name()}
        cells += [{**own, **row} for row in describe_speeds(taken, given.batch_size * given.steps)]
        ratios += [{**own, **row} for row in describe_ratios(among, taken)]
    versions = describe_versions(("torch", "ncps", "snntorch", "spikingjelly"))
    sizes = f"{given.batch_size} sequences of {given.steps} steps, {given.units} inputs and units, fp32"
    about = f"CPU, threads: {given.threads}; {versions}; {sizes}"
    print_result({"cells": cells, "ratios": ratios}, {"pass": "ms", "tokens": "k/s"}, about)


if __name__ == "__main__":
    main()
