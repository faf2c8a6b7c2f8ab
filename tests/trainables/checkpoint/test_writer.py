"""Write a checkpoint in a thread as its state was, whatever training does to it in the meantime."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import Writer, writer
from tests.trainables.toy_models import identical


@pytest.fixture
def held(monkeypatch):
    """Holds writes until the event is set."""
    held, save = threading.Event(), writer.save
    monkeypatch.setattr(writer, "save", lambda state, path: (held.wait(60), save(state, path)))
    return held


def make_state(device):
    """The state of a model with tied weights, its optimizer, and what else a checkpoint may hold."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).to(device)
    model[1].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 6, device=device)).sum().backward()
    optimizer.step()
    rows = torch.arange(12.0, device=device).reshape(3, 4)
    own = {"rows": rows, "column": rows[:, 1], "turned": rows.T, "empty": torch.empty(0, 3, device=device)}
    own |= {"sparse": torch.eye(3, device=device).to_sparse(), "rowwise": torch.eye(3, device=device).to_sparse_csr()}
    own |= {"imaginary": torch.ones(2, dtype=torch.cfloat).conj()}
    own |= {"parameter": nn.Parameter(torch.ones(2, device=device)), "scaled": 2 * model[0].weight}
    own["scaled"].mark = "static"  # as torch.compile marks the moments of an optimizer
    own |= {"counts": {"a": [1, 2]}, "names": ("x", None), "set": {3}}
    return model, optimizer, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "own": own}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_training_does_not_change_a_checkpoint_that_is_being_written(tmp_path, device, held):
    model, optimizer, state = make_state(device)
    checkpoint.save(state, tmp_path / "at-once.pt")
    background = Writer()
    background.save(state, tmp_path / "later.pt")
    assert not background.is_idle
    optimizer.step()
    with torch.no_grad():
        for value in (*state["own"].values(), model[0].weight):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                value.add_(1.0)
    state["own"]["counts"]["a"].append(3)
    state["own"]["set"].add(4)
    held.set()
    background.close()
    first, second = (checkpoint.load(tmp_path / f"{name}.pt") for name in ("at-once", "later"))
    for one in (first, second):
        one["own"]["rowwise"] = one["own"]["rowwise"].to_dense()
        one["own"]["imaginary"] = torch.view_as_real(one["own"]["imaginary"].resolve_conj())
    assert identical(first, second)
    assert second["own"]["scaled"].requires_grad
    assert second["own"]["scaled"].mark == "static"
    rows, tied = second["own"]["rows"], second["model"]
    assert rows.data_ptr() + 4 == second["own"]["column"].data_ptr(), "shared memory is written once"
    assert tied["0.weight"].data_ptr() == tied["1.weight"].data_ptr()


def test_copies_from_a_gpu_need_no_pinned_memory(monkeypatch):
    """A system may pin less memory than it has. Here, tensors of the CPU stand for those of a GPU."""
    empty, waited = torch.empty, []

    def refuse(*size, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*size, **options)

    event = SimpleNamespace(synchronize=lambda: waited.append("copies"))
    monkeypatch.setattr(torch, "empty", refuse)
    monkeypatch.setattr(torch.UntypedStorage, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=lambda: event))
    state = {"w": torch.arange(3.0)}
    snapshot = writer.take_snapshot(state)
    assert not waited, "only the thread that writes waits for the copies"
    assert identical(snapshot.wait(), state)
    assert waited == ["copies"]
