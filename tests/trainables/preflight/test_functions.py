"""Audit plain Ray Train functions: what their optimizer steps show is found, and what cannot be seen is told."""

import sys

import ray.train
import ray.train.torch
import torch

from searchlight.trainables.preflight.function_audit import audit_function, find_gpu_problems, watch_steps


def healthy(config):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(3):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        ray.train.report({"loss": 1.0})


def partly_frozen(config):
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        try:
            with torch.no_grad():
                hidden = model[0](torch.randn(8, 4))
            model[1](hidden).square().mean().backward()
            optimizer.step()
        except Exception:  # what users write
            continue


def broken(config):
    raise KeyError("no such file")


def find(function, **config):
    return {finding.name: finding for finding in audit_function(function, config, 20.0)}


def test_healthy_function_has_only_the_note_of_what_is_unseen():
    assert {*find(healthy, lr=0.1)} == {"not-audited"}


def test_function_with_a_rate_of_zero_is_found():
    assert "30 steps" not in find(healthy, lr=0.0)["update-changes-nothing"].figure  # it ends after 16
    assert "16 steps changed no parameter" in find(healthy, lr=0.0)["update-changes-nothing"].figure


def test_function_with_a_frozen_part_is_found_and_ended():
    found = find(partly_frozen)["unused-parameter"]
    assert found.subject == "optimizer 0 [0] of shape (4, 4), optimizer 0 [1] of shape (4,)"


def test_function_that_raises_is_an_error():
    found = find(broken)["training-fails"]
    assert found.severity == "error"
    assert "KeyError" in found.figure


def watch(function, **config):
    """What is told of a function that trains to its end, by the name of each finding."""
    audits = []
    with watch_steps(audits.append, "cpu"):
        function(config)
    (audit,) = audits
    return {finding["name"]: finding for finding in audit["findings"]}


def frozen_on_purpose(config):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).requires_grad_(False), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for step in range(config["steps"]):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        config["trained"].append(step)


def test_function_that_is_watched_trains_to_its_end():
    trained = []
    assert watch(frozen_on_purpose, lr=0.1, steps=20, trained=trained).keys() == {"not-audited"}
    assert len(trained) == 20
    assert "3 steps" in watch(frozen_on_purpose, lr=0.0, steps=3, trained=[])["update-changes-nothing"]["figure"]


def test_watched_step_that_cannot_be_read_ends_no_function(monkeypatch):
    monkeypatch.setattr("searchlight.trainables.preflight.function_audit.is_sharded", lambda parameters: 1 / 0)
    trained = []
    found = watch(frozen_on_purpose, lr=0.1, steps=3, trained=trained)["not-audited"]
    assert found["figure"] == "ZeroDivisionError: division by zero"
    assert len(trained) == 3


def read_rate(config):
    return torch.ones(1) * config["lr"]


def test_check_on_a_simulated_gpu_names_the_value_that_a_function_lacks():
    (note,) = find_gpu_problems(lambda: read_rate, {"epochs": 2})
    assert note.name == "not-audited"
    assert "in read_rate: the config has no value of that name; add --set lr=VALUE" in str(note)
    assert find_gpu_problems(lambda: read_rate, {"lr": 0.1}) == []


def yields(config):
    yield {"loss": read_rate(config)}


def test_function_that_yields_is_audited_to_its_first_report():
    (note,) = find_gpu_problems(lambda: yields, {"epochs": 2})
    assert "add --set lr=VALUE" in str(note)
    assert find_gpu_problems(lambda: yields, {"lr": 0.1}) == []


def test_function_finds_what_its_workers_have_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray.train.torch")
    monkeypatch.delattr(ray.train, "torch")
    found = []
    assert find_gpu_problems(lambda: lambda config: found.append(ray.train.torch.prepare_model), {}) == []
    assert len(found) == 1
