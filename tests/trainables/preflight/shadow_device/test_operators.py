"""Apply CUDA's rules of devices to single operations. Each refusal is one that CUDA makes, in its own words."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from searchlight.trainables.preflight.shadow_device import WrongDevice, shadow_cuda

GPU = "cuda"


@pytest.fixture(autouse=True)
def shadow():
    with shadow_cuda() as device:
        yield device


def ones(*shape, **options):
    return torch.ones(*shape, device=GPU, **options)


def add_to_a_number_of_the_cpu():
    total = torch.tensor(0.0)
    total += ones(3).sum()


def write_rows(rows):
    x = ones(3, 4)
    x[torch.tensor([0, 1])] = rows


REFUSED = {
    "a sum": lambda: ones(3) + torch.ones(3),
    "a product": lambda: ones(3, 4) @ torch.ones(4, 3),
    "a layer": lambda: nn.Linear(4, 4).to(GPU)(torch.ones(3, 4)),
    "a number that is written to": add_to_a_number_of_the_cpu,
    # A number on the CPU fits a TensorIterator, but not the check that torch generates for a kernel.
    "numbers that are stacked": lambda: torch.stack([ones(3).sum(), torch.tensor(1.0)]),
    "a limit that is a tensor": lambda: ones(3).clamp(min=torch.tensor(0.0)),
    "numpy": lambda: ones(3).numpy(),
    "labels": lambda: F.cross_entropy(ones(3, 4), torch.tensor([0, 1, 2])),
    "a mask": lambda: ones(3).masked_fill(torch.ones(3, dtype=torch.bool), 0.0),
    "indices of an embedding": lambda: nn.Embedding(5, 3).to(GPU)(torch.tensor([1])),
    "rows of the cpu by indices of the gpu": lambda: torch.ones(3)[torch.zeros(2, dtype=torch.long, device=GPU)],
    "rows that are written": lambda: write_rows(torch.zeros(2, 4)),
    "a generator of the cpu": lambda: torch.rand(3, device=GPU, generator=torch.Generator()),
    "a generator of the gpu": lambda: torch.randperm(3, generator=torch.Generator(GPU)),
    "a product of integers": lambda: ones(2, 2, dtype=torch.long) @ ones(2, 2, dtype=torch.long),
    "lengths on the gpu": lambda: nn.utils.rnn.pack_padded_sequence(ones(3, 2, 4), ones(2, dtype=torch.long) * 3),
    "a gradient": lambda: setattr(nn.Linear(2, 2).to(GPU).weight, "grad", torch.zeros(2, 2)),
    "pinned memory of the gpu": lambda: next(iter(DataLoader(TensorDataset(ones(3)), pin_memory=True))),
    "a tensor in a worker": lambda: next(iter(DataLoader(TensorDataset(ones(3)), num_workers=1))),
    "a second gpu": lambda: torch.ones(3).to("cuda:1"),
    "an old constructor": lambda: torch.Tensor([1.0, 2.0]) + ones(2),
    "a histogram": lambda: torch.histogram(ones(3), 2),
}


@pytest.mark.parametrize("action", REFUSED.values(), ids=REFUSED)
def test_operation_on_two_devices_is_refused(action):
    with pytest.raises((WrongDevice, RuntimeError), match=r"device|cuda|CUDA|numpy|CPU int64"):
        action()


def write_with_masks():
    x = ones(3, 4)
    x[torch.tensor([True, False, True])] = 1.0
    x[0] = torch.zeros(4)  # a copy
    return x[torch.tensor([0, 1])]


def run_packed():
    lstm = nn.LSTM(4, 5).to(GPU)
    packed = nn.utils.rnn.pack_padded_sequence(ones(3, 2, 4), torch.tensor([3, 2]))
    padded, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
    assert lengths.numpy().tolist() == [3, 2]
    return padded


def build_with_default():
    with torch.device(GPU):
        layer = nn.Linear(2, 2)
    return layer.weight


def set_default():
    torch.set_default_device(GPU)
    try:
        return torch.zeros(3)
    finally:
        torch.set_default_device(None)


def look_up_sparsely():
    embedding = nn.Embedding(5, 3, sparse=True).to(GPU)
    embedding(ones(2, dtype=torch.long)).sum().backward()
    torch.optim.SparseAdam(embedding.parameters()).step()
    return embedding.weight.grad


ACCEPTED = {
    "a number of the cpu": lambda: ones(3) + torch.tensor(1.0),
    "a product with a number": lambda: torch.tensor(2.0) * ones(3),
    "where with a number": lambda: torch.where(ones(3) > 0, ones(3), torch.tensor(0.0)),
    "indices of the cpu": write_with_masks,
    "one_hot": lambda: F.one_hot(ones(3, dtype=torch.long)).float() @ ones(2, 3),
    "packed sequences": run_packed,
    "a default device": build_with_default,
    "a global default device": set_default,
    "a sparse gradient": look_up_sparsely,
    "a sparse tensor": lambda: torch.eye(3).to_sparse().to(GPU) @ ones(3, 3),
    "a padded list": lambda: nn.utils.rnn.pad_sequence([ones(2), ones(3)]) + ones(3, 2),
    "a new tensor": lambda: ones(3).new_zeros(3) + ones(3),
    "a complex transform": lambda: torch.fft.ifft(torch.fft.fft(ones(4))).real + ones(4),
    "a linear system": lambda: torch.linalg.solve(torch.eye(3, device=GPU), ones(3)),
    "a vmap": lambda: torch.func.vmap(lambda row: (row * 2).sum() + ones(()))(ones(3, 4)),
    "a functional gradient": lambda: torch.func.grad(lambda x: (x * ones(3)).sum())(ones(3)),
    "quantiles": lambda: torch.quantile(ones(4), torch.tensor([0.5], device=GPU)),
    "a copy by to": lambda: torch.ones(3, dtype=torch.double).to(GPU, torch.float32, non_blocking=True) + ones(3),
    "ctc with lengths on the cpu": lambda: F.ctc_loss(
        ones(6, 2, 5).log_softmax(2), ones(2, 3, dtype=torch.long), torch.tensor([6, 6]), torch.tensor([3, 2])
    ),
    "a lazy layer": lambda: nn.LazyLinear(2).to(GPU)(ones(3, 4)),
    "pinned memory": lambda: torch.empty(3, pin_memory=True).to(GPU),
    "a copy like another": lambda: torch.ones(3).type_as(ones(1)),
}


@pytest.mark.parametrize("action", ACCEPTED.values(), ids=ACCEPTED)
def test_operation_that_cuda_runs_has_its_result_there(action):
    result = action()
    assert result.is_cuda
    assert result.device == torch.device(GPU, 0)


def test_tensor_without_a_device_stays_on_the_cpu():
    assert not any(
        x.is_cuda for x in (torch.zeros(2), torch.normal(0.0, 1.0, (2,)), torch.tensor([ones(()), ones(())]))
    )
    assert torch.as_tensor(ones(2)).is_cuda


def test_gradient_flows_back_to_the_device_of_its_tensor():
    on_cpu = torch.ones(3, requires_grad=True)
    (on_cpu.to(GPU) * ones(3)).sum().backward()
    assert on_cpu.grad.tolist() == [1.0] * 3
    assert not on_cpu.grad.is_cuda


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=str)
def test_optimizer_steps_on_the_gpu(optimizer, options):
    model = nn.Linear(4, 1).to(GPU)
    optimizer = optimizer(model.parameters(), lr=0.1, **options)

    def compute():
        optimizer.zero_grad()
        loss = model(ones(2, 4)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    first = optimizer.step(compute).item()
    optimizer.step(compute)
    assert compute().item() < first
    assert model.weight.grad.is_cuda


def test_optimizer_of_parameters_on_two_devices_steps():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2).to(GPU)]
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
    (layers[0](torch.ones(2)).sum() + layers[1](ones(2)).sum().cpu()).backward()
    optimizer.step()


def test_norms_of_tensors_on_two_devices_are_where_these_are():
    norms = torch._foreach_norm([ones(3), torch.ones(3)], 2)
    assert [norm.device.type for norm in norms] == ["cuda", "cpu"]
    with pytest.raises(WrongDevice, match="at least two devices"):
        torch.stack(norms)


def test_scaler_and_autocast_run_in_half_precision():
    model, scaler = nn.Linear(4, 1).to(GPU), torch.amp.GradScaler(GPU)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.autocast(GPU):
        assert model(ones(2, 4)).dtype is torch.float16
    scaler.scale(model(ones(2, 4)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def test_checkpoint_recomputes_on_the_gpu():
    layer, x = nn.Linear(4, 4).to(GPU), ones(2, 4).requires_grad_()

    def block(x):
        return torch.relu(layer(x)) + torch.zeros(4, device=x.device)

    checkpoint(block, x, use_reentrant=False).sum().backward()
    (gradient,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), x)
    assert gradient.is_cuda
    assert torch.equal(gradient, x.grad)


def test_activations_are_saved_on_the_cpu():
    layer = nn.Linear(4, 1).to(GPU)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = layer(ones(2, 4)).square().sum()
    loss.backward()
    assert layer.weight.grad.is_cuda


def test_copies_and_files_keep_the_device():
    x, layer = ones(3), nn.BatchNorm1d(3).to(GPU)
    assert copy.deepcopy(x).is_cuda
    assert all(value.is_cuda for value in copy.deepcopy(layer).state_dict().values())
    assert pickle.loads(pickle.dumps(x)).is_cuda
    for place, expected in ((None, [True, False]), ("cpu", [False, False]), (GPU, [True, True])):
        file = io.BytesIO()
        torch.save([x, torch.ones(3)], file)
        file.seek(0)
        assert [value.is_cuda for value in torch.load(file, map_location=place)] == expected


def test_loader_with_pinned_memory_and_workers_runs():
    for workers in (0, 1):
        (batch,) = next(iter(DataLoader(TensorDataset(torch.ones(3)), pin_memory=True, num_workers=workers)))
        assert batch.to(GPU, non_blocking=True).is_cuda


def test_streams_and_events_order_nothing():
    stream, x = torch.cuda.Stream(), ones(3)
    with torch.cuda.stream(stream):
        x.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.cuda.Event().query()


def test_waits_are_counted_by_line_and_kind(shadow):
    x = ones(3)
    for _ in range(2):
        float(x.sum())
    x[x > 0].cpu()
    x[x > 0] = 0.0  # a fill, which does not wait
    assert [(where.split(",")[0], kind, count) for (where, kind), count in shadow.waits.items()] == [
        ("test_operators.py", "item(), float(), bool() or an if", 2),
        ("test_operators.py", "a boolean mask as an index", 1),
        ("test_operators.py", "cpu()", 1),
    ]


def test_torch_is_as_before_afterwards():
    with shadow_cuda():
        assert torch.cuda.is_available()
    with torch.overrides.BaseTorchFunctionMode():
        assert torch.cuda.device_count() == 1  # of the outer one
