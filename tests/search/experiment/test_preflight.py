"""Ask for the audit of a search: its configs, its cost, its process, and the precisions that are left out."""

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import BaseModel

from searchlight.search.analysis.cost_estimate import estimate_cost
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.local_machine import (
    check_driver,
    get_device_type,
    leave_out_fp16,
    leave_out_unsupported,
    may_train_on_gpus,
)
from searchlight.search.experiment import plan
from searchlight.search.experiment.audit_follower import is_audited
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.experiment.preflight import (
    MODES_S,
    build_request,
    estimate,
    find_unsupported_modes,
    has_gpus,
    identify_audit,
    list_corners,
    load_estimate,
    run_preflight,
)
from searchlight.search.experiment.ray_run import _check_precisions, _leave_out_precisions
from searchlight.search.experiment.warm_start import PriorTrial, WarmStart
from searchlight.search.reporting.console.preflight import format_estimate, print_audit
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.precision import Precision, find_supported_precisions
from searchlight.trainables.task import Task, TaskConfig, searchable
from tests.search.output_schemas import check_output

TASKS = Path(__file__).parents[2] / "tasks"
TOY = f"{TASKS / 'toy.py'}:Toy"
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


LEFT_OUT = (
    "fp16 is left out of the search: its workers have no GPU. "
    "A new search with --search precision=fp32,bf16,fp16 keeps it"
)


@pytest.fixture
def on_cpus(tmp_path, monkeypatch):
    """Return a function that plans a search of a machine without GPUs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return lambda **options: plan(make_config(TOY, storage=tmp_path, gpus_per_worker=0, **options))


def precisions_of(space):
    return [str(parameter) for parameter in space.parameters if parameter.name == "precision"]


def test_fp16_is_left_out_of_a_search_without_gpus(on_cpus):
    planned = on_cpus()
    assert (precisions_of(planned.space), planned.notes) == (["fp32,bf16"], (LEFT_OUT,))


def test_warm_start_keeps_the_precisions_of_earlier_trials(on_cpus, monkeypatch):
    monkeypatch.setitem(plan.__globals__, "load_warm_start", lambda sources, space, *_: WarmStart(lines=(str(space),)))
    planned = on_cpus(warm_start=["earlier"])
    assert (precisions_of(planned.space), planned.notes) == (["fp32,bf16,fp16"], ())
    assert planned.warm.lines == (str(planned.space),), "fp16 trials fit into it"


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"search": {"precision": "fp32,fp16"}}, ["fp32,fp16"]),
        ({"try": [{"precision": "fp16"}]}, ["fp32,bf16,fp16"]),
        ({"set": {"precision": "fp16"}}, []),
    ],
)
def test_precisions_that_the_user_named_stay(on_cpus, named, kept):
    if "fp16" not in find_supported_precisions(torch.device("cpu")):
        pytest.skip("this CPU has no fp16 at all")
    planned = on_cpus(**named)
    assert (precisions_of(planned.space), planned.notes) == (kept, ())


class Fp16Config(TaskConfig):
    precision: str = searchable("fp16", choices=["fp32", "fp16"])


class TwoModes(TaskConfig):
    precision: str = searchable("fp32", choices=["fp32", "fp16"])
    lr: float = searchable(1e-2, low=1e-3, high=1e-1)


class PlainConfig(BaseModel):
    precision: str = searchable("fp16", choices=["fp32", "fp16"])


@pytest.mark.parametrize("config_class", [Fp16Config, CornerConfig, PlainConfig])
def test_default_fixed_and_foreign_precisions_stay(config_class):
    space = resolve_space(config_class, {}, {})
    assert leave_out_fp16(make_config(TOY), space) == (space, ())


@pytest.mark.parametrize(("tried", "stays"), [("fp16", True), ("fp32", False)])
def test_point_to_try_keeps_fp16_if_it_names_it(tried, stays):
    space, lines = leave_out_fp16(make_config(TOY, try_=[{"precision": tried}]), resolve_space(TwoModes, {}, {}))
    assert (space.fixed.get("precision") == "fp32", len(lines)) == (not stays, not stays)


def test_precision_that_alone_remains_is_fixed():
    space, (line,) = leave_out_fp16(make_config(TOY), resolve_space(TwoModes, {}, {}))
    assert ([p.name for p in space.parameters], space.fixed["precision"]) == (["lr"], "fp32")
    assert "precision=fp32,fp16 keeps it" in line


class ThreeModes(TwoModes):
    precision: str = searchable("bf16", choices=["fp32", "bf16", "fp16"])


@pytest.mark.parametrize(
    ("config_class", "is_joined", "unsupported", "left", "first"),
    [
        (TwoModes, True, {}, [], ({"lr": 0.01}, {"lr": 0.02})),
        (TwoModes, False, {"fp16": "no LSTM"}, [], ({"lr": 0.01}, {"lr": 0.02})),
        (ThreeModes, False, {"fp16": "no LSTM"}, ["fp32,bf16"], ({"precision": "fp32", "lr": 0.01}, {"lr": 0.02})),
        (ThreeModes, False, {"fp32": "odd"}, ["bf16,fp16"], ({"lr": 0.01}, {"lr": 0.02})),
        (ThreeModes, True, {"bf16": "no LSTM"}, [], ({"lr": 0.01}, {"lr": 0.02})),
    ],
)
def test_precision_that_workers_lack_leaves_space_and_first_points(
    monkeypatch, config_class, is_joined, unsupported, left, first
):
    monkeypatch.setitem(_leave_out_precisions.__globals__, "uses_existing_cluster", lambda: is_joined)
    monkeypatch.setitem(_leave_out_precisions.__globals__, "find_unsupported_modes", lambda planned: unsupported)
    given = ({"precision": "fp32", "lr": 0.01}, {"lr": 0.02})
    space = resolve_space(config_class, {}, {})
    planned = _leave_out_precisions(SearchPlan(make_config(TOY), None, space, None, (), given, notes=("before",)))
    assert (precisions_of(planned.space), planned.first) == (left, first)
    assert [note.partition(" is left out")[0] for note in planned.notes] == [
        "before",
        *(["fp16"] if is_joined else []),
        *unsupported,
    ]


@pytest.mark.parametrize(
    ("unsupported", "modes", "left"),
    [({"bf16": "no LSTM"}, ["fp16", "fp32"], ["fp32,fp16"]), ({"bf16": "", "fp16": ""}, ["fp32"], [])],
)
def test_precision_that_workers_lack_leaves_earlier_trials(monkeypatch, unsupported, modes, left):
    monkeypatch.setitem(_leave_out_precisions.__globals__, "find_unsupported_modes", lambda planned: unsupported)
    warm = WarmStart(tuple(PriorTrial("completed", {"precision": mode, "lr": 0.01}, {1: 0.5}) for mode in Precision))
    space = resolve_space(ThreeModes, {}, {})
    planned = _leave_out_precisions(SearchPlan(make_config(TOY), None, space, None, (), warm=warm))
    assert precisions_of(planned.space) == left
    assert sorted(trial.point["precision"] for trial in planned.warm.trials) == modes
    assert planned.notes[-1].startswith(f"{3 - len(modes)} trial")
    assert planned.notes[-1].endswith("of earlier searches left out as well")


@pytest.mark.parametrize("is_known", [False, True])
def test_resume_where_workers_lack_a_precision_is_refused(monkeypatch, is_known):
    monkeypatch.setitem(_check_precisions.__globals__, "find_unsupported_modes", lambda planned: {"bf16": "no LSTM"})
    monkeypatch.setitem(is_audited.__globals__, "identify_audit", lambda request, files: "this machine")
    space, source = resolve_space(ThreeModes, {}, {}), SimpleNamespace(task_class=Task)
    planned = SearchPlan(make_config(TOY, name="one"), source, space, None, ())
    study = SimpleNamespace(metadata={"files": {}})
    if is_known:  # the search has audited its task here
        study.metadata["preflight"] = {"of": "this machine", "has_errors": False}
    told = "" if is_known else "but one searches bf16: no LSTM. Resume it on another machine"
    with pytest.raises(UsageError, match=told) if told else nullcontext():
        _check_precisions(planned, study, {"CPU": 1.0})
    _check_precisions(planned, study, {"GPU": 1.0})


@pytest.mark.parametrize(
    ("config_class", "fixed", "tries", "told"),
    [
        (TwoModes, {"precision": "fp16"}, [], "but got fp16: no LSTM. Choose --set precision=fp32."),
        (TwoModes, {}, [{"precision": "fp16"}], "but got fp16: no LSTM. Choose --set precision=fp32."),
        (ThreeModes, {}, [{"precision": "fp16"}], "but got fp16: no LSTM. Choose --search precision=fp32,bf16."),
    ],
)
def test_precision_that_the_user_chose_and_workers_lack_is_refused(config_class, fixed, tries, told):
    space = resolve_space(config_class, fixed, {})
    with pytest.raises(UsageError, match="precision must be one in which the workers can run") as raised:
        leave_out_unsupported(make_config(TOY, **{"try": tries}), space, {"fp16": "no LSTM"})
    assert str(raised.value).endswith(told)


LACKING = """
import torch
from toy import Toy

class Lacking(Toy):
    def loss(self, batch):
        if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16:
            raise RuntimeError("could not create a primitive descriptor. Run it again")
        return super().loss(batch)
"""


def test_precision_that_a_cpu_lacks_is_found_before_a_search(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    shutil.copytree(TASKS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "lacking.py").write_text(LACKING)
    planned = plan(make_config(f"{tmp_path / 'lacking.py'}:Lacking", storage=tmp_path / "runs", gpus_per_worker=0))
    monkeypatch.setitem(find_unsupported_modes.__globals__, "lacks_kernels", lambda mode, device: False)
    assert find_unsupported_modes(planned) == {}, "such a CPU lacks nothing"
    monkeypatch.setitem(find_unsupported_modes.__globals__, "lacks_kernels", lambda mode, device: mode == "bf16")
    assert find_unsupported_modes(planned) == {"bf16": "RuntimeError: could not create a primitive descriptor"}


def test_task_that_hangs_does_not_hold_up_a_search_that_asks_for_modes(monkeypatch):
    limits = []

    def hang(request, environment, longest_s):
        limits.append(longest_s)
        raise TimeoutError("not ended")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(find_unsupported_modes.__globals__, "lacks_kernels", lambda mode, device: mode == "bf16")
    monkeypatch.setitem(find_unsupported_modes.__globals__, "audit_apart", hang)
    assert find_unsupported_modes(plan(make_config(TOY, gpus_per_worker=0))) == {}
    assert limits == [MODES_S]


def test_gpus_of_this_machine_and_of_a_joined_cluster_keep_fp16(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cpus, gpus = make_config(TOY, gpus_per_worker=0), make_config(TOY)
    assert [may_train_on_gpus(config) for config in (cpus, gpus)] == [False, True]
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert may_train_on_gpus(cpus), "its nodes decide"


def test_old_driver_is_told_before_a_search_or_its_preflight(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setitem(check_driver.__globals__, "find_driver_problem", lambda: "the driver is 535.104.")
    with pytest.raises(
        UsageError, match=r"must let torch use its GPUs: the driver is 535\.104\. --gpus-per-worker 0 tra"
    ):
        plan(make_config(TOY))
    planned = plan(make_config(TOY, gpus_per_worker=0))
    assert not has_gpus(planned.config)


@pytest.mark.parametrize("count", [0, 2])
def test_preflight_and_search_choose_the_same_device(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert has_gpus(make_config(TOY)) == (get_device_type(make_config(TOY)) == "cuda") == bool(count)


@pytest.mark.parametrize(("gpus", "is_joined"), [(0, False), (1, False), (1, True)])
def test_resumed_search_keeps_the_space_that_it_began_with(on_cpus, monkeypatch, gpus, is_joined):
    planned = on_cpus()
    planned.config.local_path.mkdir(parents=True)
    created = create_search(planned)
    # Searches of earlier versions also stored the precisions that they left out.
    created.study.save_metadata({**created.study.metadata, "left_out": {"fp16": "this CPU emulates it"}})
    created.store.close()
    monkeypatch.setitem(open_search.__globals__, "may_train_on_gpus", lambda config: bool(gpus))
    monkeypatch.setitem(open_search.__globals__, "uses_existing_cluster", lambda: is_joined)
    resumed, opened = open_search(planned.config.path, {})
    opened.store.close()
    assert precisions_of(resumed.space) == ["fp32,bf16"]
    told = ["precision stays searched in fp32,bf16, as before, and is not searched in fp32,bf16,fp16"]
    assert [note for note in opened.notes if "precision" in note] == told * (gpus and not is_joined)


def test_audit_is_another_one_for_other_files_and_defaults(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    spaces = [resolve_space(CornerConfig, {"lr": lr}, {}) for lr in (0.01, 0.02)]
    request, other = (build_request(space, workers=1, is_quick=True) for space in spaces)
    files = {"toy.py": "1"}
    known = identify_audit(request, files)
    assert known == identify_audit(request, files)
    assert len({known, identify_audit(other, files), identify_audit(request, {"toy.py": "2"})}) == 3
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert identify_audit(request, files) == ""


def test_audit_runs_in_its_process_and_leaves_its_costs(tmp_path, capsys):
    config = make_config(TOY, storage=tmp_path, set={"epochs": "2"}, gpus_per_worker=0)
    planned = plan(config)
    assert load_estimate(planned) is None
    audit = run_preflight(planned)
    assert not check_output("audit", audit)["has_errors"], audit["findings"]
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


def test_quick_request_has_no_corners():
    quick = build_request(resolve_space(CornerConfig, {}, {}), 1, is_quick=True)
    assert (quick.is_quick, quick.corners, quick.limit_s) == (True, (), 4.0)
