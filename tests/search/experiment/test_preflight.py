"""Ask for the audit of a search: its configs, its cost, its process, and the precisions that are left out."""

import json
import sys
from pathlib import Path

import pytest
import torch

from searchlight.search.analysis.cost_estimate import estimate_cost
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.config.search_space import resolve_space
from searchlight.search.config.task_source import load_task_source
from searchlight.search.execution.cluster import local_machine
from searchlight.search.experiment import plan
from searchlight.search.experiment.plan import build_space
from searchlight.search.experiment.preflight import (
    build_request,
    estimate,
    identify_audit,
    list_corners,
    load_estimate,
    run_preflight,
)
from searchlight.search.experiment.resume import create_search, open_search
from searchlight.search.reporting.console.preflight import format_estimate, print_audit
from searchlight.search.reporting.console.tables import create_console
from searchlight.trainables.precision import find_supported_precisions
from searchlight.trainables.preflight import modes
from searchlight.trainables.task import TaskConfig, searchable

TASKS = Path(__file__).parents[2] / "tasks"
COSTS = [{"epoch_s": 2.0, "build_s": 1.0}, {"epoch_s": None, "build_s": 1.0}, {"epoch_s": 4.0, "build_s": 0.0}]


class CornerConfig(TaskConfig):
    precision: str = "fp32"
    lr: float = searchable(1e-2, low=1e-3, high=1e-1, log=True)
    width: int = searchable(16, choices=[64, 16, 32])
    cell: str = searchable("a", choices=["a", "b"])


def make_config(task, **options):
    return resolve_config(SearchConfig(task=task, **options))


def test_corners_are_both_ends_and_each_other_choice():
    found = {where: [c["lr"], c["width"], c["cell"]] for where, c in list_corners(resolve_space(CornerConfig, {}, {}))}
    assert found == {
        "all lowest": [0.001, 16, "a"],
        "all highest": [0.1, 64, "a"],
        "width=64": [0.01, 64, "a"],
        "width=32": [0.01, 32, "a"],
        "cell=b": [0.01, 16, "b"],
    }


def test_estimate_reaches_from_defaults_to_the_most_expensive_config():
    found = estimate_cost(90, 10, 2, 4, COSTS, True)
    assert found.seconds == (15 + 190 / 2, 15 + 360 / 2)
    assert found.device_hours == (190 * 4 / 3600, 360 * 4 / 3600)
    assert format_estimate(found) == "1:50 to 3:15, 0.211 to 0.4 GPU-hours"


@pytest.mark.parametrize(("epochs", "costs"), [(None, COSTS), (90, []), (90, COSTS[1:2])])
def test_estimate_is_none_where_an_epoch_is_unknown(epochs, costs):
    assert estimate_cost(epochs, 10, 2, 1, costs) is None


@pytest.fixture
def emulating(monkeypatch):
    monkeypatch.setattr(modes, "is_fp16_product_native", lambda: False)
    monkeypatch.setattr(local_machine, "emulation_factor", lambda device: 50.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if "fp16" not in find_supported_precisions(torch.device("cpu")):
        pytest.skip("this CPU has no fp16 at all")


def choices_of(tmp_path, **options):
    config = make_config(f"{TASKS / 'toy.py'}:Toy", storage=tmp_path, gpus_per_worker=0, **options)
    planned = plan(config)
    return next(str(p) for p in planned.space.parameters if p.name == "precision"), planned.left_out


def test_emulated_precision_is_left_out_and_told(tmp_path, emulating):
    found, notes = choices_of(tmp_path)
    assert found == "fp32,bf16"
    assert notes == {
        "fp16": "fp16 is left out of the search: this CPU emulates it, and a matrix product takes 50 times as long "
        "as in fp32. A new search with --search precision=fp32,bf16,fp16 keeps it",
    }


@pytest.mark.parametrize("named", [{"search": {"precision": "fp32,fp16"}}, {"try": [{"precision": "fp16"}]}])
def test_emulated_precision_that_was_named_stays(tmp_path, emulating, named):
    found, notes = choices_of(tmp_path, **named)
    assert "fp16" in found
    assert notes == {}


def test_precision_that_nodes_emulate_is_left_out_of_a_joined_search(emulating, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    config = make_config(f"{TASKS / 'toy.py'}:Toy")
    space = build_space(config, load_task_source(config.task))
    assert local_machine.leave_out_emulated(config, space) == (space, {}), "the driver's CPU does not count"
    assert local_machine.list_optional_precisions(config, space) == ["bf16", "fp16"]
    narrowed, line = local_machine.leave_out(space, ["fp16"], "the CPU of node 10.0.0.1 emulates it", 40.0)
    assert [str(p) for p in narrowed.parameters if p.name == "precision"] == ["fp32,bf16"]
    assert line == (
        "fp16 is left out of the search: the CPU of node 10.0.0.1 emulates it, and a matrix product takes 40 times as "
        "long as in fp32. A new search with --search precision=fp32,bf16,fp16 keeps it"
    )


def test_native_precision_stays(tmp_path, emulating, monkeypatch):
    monkeypatch.setattr(modes, "is_fp16_product_native", lambda: True)
    assert choices_of(tmp_path) == ("fp32,bf16,fp16", {})


def test_resume_names_why_a_precision_is_left_out(tmp_path, emulating, monkeypatch):
    planned = plan(make_config(f"{TASKS / 'toy.py'}:Toy", storage=tmp_path, gpus_per_worker=0))
    planned.config.local_path.mkdir(parents=True)
    create_search(planned).store.close()
    monkeypatch.setattr(modes, "is_fp16_product_native", lambda: True)
    _, resumed = open_search(planned.config.path, {})
    resumed.store.close()
    (line,) = (note for note in resumed.notes if "fp16" in note)
    assert line.startswith("as at the start, fp16 is left out of the search: this CPU emulates it")


def test_audit_is_another_one_for_other_files_and_defaults(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    planned, other = (
        plan(make_config(f"{TASKS / 'toy.py'}:Toy", storage=tmp_path, set={"epochs": epochs}, gpus_per_worker=0))
        for epochs in ("2", "3")
    )
    files = {"toy.py": "1"}
    known = identify_audit(planned, files)
    assert known == identify_audit(planned, files)
    assert len({known, identify_audit(other, files), identify_audit(planned, {"toy.py": "2"})}) == 3
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert identify_audit(planned, files) == ""


def test_audit_runs_in_its_process_and_leaves_its_costs(tmp_path, capsys):
    config = make_config(f"{TASKS / 'toy.py'}:Toy", storage=tmp_path, set={"epochs": "2"}, gpus_per_worker=0)
    planned = plan(config)
    assert load_estimate(planned) is None
    audit = run_preflight(planned)
    assert not audit["has_errors"], audit["findings"]
    assert [cost["where"] for cost in audit["costs"]][:3] == ["", "all lowest", "all highest"]
    assert audit["costs"][0]["samples"] == 16
    assert load_estimate(planned) == estimate(planned, audit)
    assert json.loads(json.dumps(audit)) == audit
    print_audit(create_console(sys.stdout, 200), audit, estimate(planned, audit))
    assert "worker-hours" in capsys.readouterr().out


def test_audit_of_a_task_that_ends_its_process_is_an_error(tmp_path):
    (tmp_path / "ending.py").write_text(
        "import os\nfrom trainables.task import Task, TaskConfig\n\n\nclass Leaving(Task[TaskConfig]):\n"
        "    objective = 'val/loss'\n\n    def build(self):\n        print('gone', flush=True)\n        os._exit(7)\n\n"
        "    def train_batches(self, epoch): ...\n    def loss(self, batch): ...\n    def evaluate(self): ...\n"
    )
    audit = run_preflight(plan(make_config(f"{tmp_path / 'ending.py'}:Leaving", storage=tmp_path / "runs")))
    (finding,) = audit["findings"]
    assert (finding["name"], finding["figure"]) == ("training-fails", "the process ended with code 7: gone")


def test_quick_request_has_no_corners(tmp_path):
    planned = plan(make_config(f"{TASKS / 'toy.py'}:Toy", storage=tmp_path, gpus_per_worker=0))
    quick = build_request(planned, is_quick=True)
    assert (quick.is_quick, quick.corners, quick.limit_s) == (True, (), 4.0)
