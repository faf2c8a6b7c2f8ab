"""What is wrong with a config of the liquid task is told before anything starts: each mistake in one line."""

import time
from typing import Any

import pytest
from pydantic import ValidationError

from search.config.search_space import resolve_space
from search.errors import UsageError
from trainables.liquid.config import RULES, LiquidConfig

STRENGTHS = ("consolidation.ewc_strength", "consolidation.si_strength")


def problems(fixed: dict[str, str], searched: dict[str, str] | None = None) -> list[str]:
    """What the command line says of `--set` and `--search`."""
    with pytest.raises(UsageError) as caught:
        resolve_space(LiquidConfig, fixed, searched or {})
    return [problem.removeprefix("--set ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"epochs": "4"}, "epochs must be at least continual.tasks, 5, but got 4. Each task is learned for an epoch"),
        ({"continual.tasks": "11", "epochs": "20"}, "continual.tasks must be between 1 and the 10 classes, but got 11"),
        ({"continual.tasks": "6", "data": "series"}, "continual.tasks must be between 1 and the 5 domains, but got 6"),
        ({"continual.tasks": "6", "data": "text"}, "continual.tasks must be between 1 and the 5 domains, but got 6"),
        (
            {"continual.tasks": "6", "continual.scenario": "domain"},
            'continual.tasks must give each task at least 2 classes in the "domain" scenario, but got 1. Use fewer',
        ),
        (
            {"continual.scenario": "classes"},
            "continual.scenario must be 'task', 'domain' or 'class', but got 'classes'",
        ),
        ({"data": "digts"}, "data must be digits, text, series, hub:NAME or a folder, but got 'digts': there is no s"),
        ({"data": "/nowhere"}, "data must be digits, text, series, hub:NAME or a folder, but got '/nowhere': there"),
        ({"data": "idx:/nowhere"}, "data must be digits, text, series, hub:NAME or a folder, but got 'idx:/nowhere'"),
        ({"data": ""}, "data must be digits, text, series, hub:NAME or a folder, but got ''"),
        ({"data": "hub:"}, "data must name a data set, hub:owner/name, but got 'hub:'"),
        ({"length": "0"}, "length must be greater than or equal to 1, but got '0'"),
        ({"spiking.decay": "1"}, "spiking.decay must be less than 1, but got '1'"),
        ({"spiking.decay": "0"}, "spiking.decay must be greater than 0, but got '0'"),
        ({"spiking.threshold": "0"}, "spiking.threshold must be greater than 0, but got '0'"),
        ({"spiking.lowest_rate": "0.6"}, "spiking must have a lowest_rate of at most its highest_rate, 0.5, but got 0"),
        (
            {"spiking.dcay": "0.5"},
            "spiking.dcay must name a parameter, but there is no 'spiking.dcay'. Did you mean 's",
        ),
        ({"plasticity.rule": "stdp"}, "plasticity.rule must be 'none', 'pair', 'triplet', 'homeostatic' or 'bcm', but"),
        ({"plasticity.rate": "0"}, "plasticity.rate must be greater than 0, but got '0'"),
        ({"plasticity.rate": "inf"}, "plasticity.rate must be a finite number, but got 'inf'"),
        ({"plasticity.target_rate": "0"}, "plasticity.target_rate must be greater than 0, but got '0'"),
        ({"consolidation.decay": "1.5"}, "consolidation.decay must be less than or equal to 1, but got '1.5'"),
        ({"consolidation.method": "l2"}, "consolidation.method must be 'none', 'ewc' or 'si', but got 'l2'"),
        ({"consolidation.ewc_strength": "-1"}, "consolidation.ewc_strength must be greater than or equal to 0, but"),
        ({"replay.fraction": "1"}, "replay.fraction must be less than 1, but got '1'"),
        ({"replay.size": "0"}, "replay.size must be greater than 0, but got '0'"),
        ({"warmup": "1.5"}, "warmup must be less than or equal to 1, but got '1.5'"),
        ({"cell": "lstm"}, "cell must be 'cfc', 'liquid', 'ncp' or 'ltc', but got 'lstm'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_right(fixed: dict[str, str], told: str) -> None:
    (line,) = problems(fixed)
    assert line.startswith(told)
    assert line.endswith((".", "?"))
    assert "\n" not in line


def test_a_folder_without_text_or_with_too_little_is_refused(tmp_path: Any) -> None:
    (line,) = problems({"data": str(tmp_path), "continual.tasks": "1"})
    assert line.startswith("data must be a folder with a .txt file, or a subfolder of them, for each domain, but got")
    (tmp_path / "short.txt").write_text("too short")
    (line,) = problems({"data": str(tmp_path), "continual.tasks": "1"})
    assert line.startswith("data must have at least 1290 bytes in each domain for windows of 128, but got 9 in short")
    (tmp_path / "short.txt").write_text("long enough " * 200)
    (line,) = problems({"data": str(tmp_path), "continual.tasks": "2"})
    assert line.startswith("continual.tasks must be between 1 and the 1 domains, but got 2")
    assert LiquidConfig(data=str(tmp_path), continual={"tasks": 1}).data == str(tmp_path)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_no_number_is_infinite_without_a_command_line_either(value: float) -> None:
    for part, name in [("plasticity", "rate"), ("consolidation", "ewc_strength"), ("spiking", "threshold")]:
        with pytest.raises(ValidationError, match="finite number"):
            LiquidConfig.model_validate({part: {name: value}})


def test_parameters_are_searched_where_they_matter_and_nowhere_else() -> None:
    parameters = {parameter.name: parameter for parameter in resolve_space(LiquidConfig, {}, {}).parameters}
    rate, ewc, si = (parameters[name] for name in ("plasticity.rate", *STRENGTHS))
    for rule in RULES:
        assert rate.is_active({"plasticity.rule": rule})
    assert not rate.is_active({"plasticity.rule": "none"})
    for strength, method in ((ewc, "ewc"), (si, "si")):
        assert [m for m in ("none", "ewc", "si") if strength.is_active({"consolidation.method": m})] == [method]


def test_a_fixed_rule_or_method_decides_what_is_searched_with_it() -> None:
    def searched(**fixed: str) -> dict[str, Any]:
        space = resolve_space(LiquidConfig, {name.replace("__", "."): value for name, value in fixed.items()}, {})
        return space.choose(lambda parameter: str(parameter))

    names = searched(plasticity__rule="none", consolidation__method="none")
    assert not {"plasticity.rate", *STRENGTHS} & names.keys()
    names = searched(plasticity__rule="bcm", consolidation__method="si")
    assert names["plasticity.rate"] == "0.01..100:log"
    assert {"plasticity.rate", *STRENGTHS} & names.keys() == {"plasticity.rate", "consolidation.si_strength"}
    assert "replay.fraction" in names


def test_what_is_set_and_suggested_by_nested_names_reaches_its_part() -> None:
    space = resolve_space(LiquidConfig, {"continual.tasks": "2", "plasticity.meta": "true"}, {"replay.size": "10..20"})
    config = space.build_config({"replay.size": 12, "spiking.slope": 7.0})
    assert isinstance(config, LiquidConfig)
    assert (config.continual.tasks, config.plasticity.meta, config.replay.size) == (2, True, 12)
    assert (config.spiking.slope, config.spiking.neurons) == (7.0, 32)
    assert LiquidConfig.model_validate(config.model_dump(mode="json", round_trip=True)) == config


def test_paths_are_absolute_since_workers_run_elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("some text " * 200)
    monkeypatch.chdir(tmp_path)
    config = LiquidConfig(data="texts", continual={"tasks": 1})
    assert config.data == str(tmp_path / "texts")


@pytest.mark.parametrize("data", ["digits", "text", "series"])
def test_a_config_is_checked_again_in_no_time(data: str) -> None:
    """A search makes several per trial."""
    LiquidConfig(data=data)
    start = time.perf_counter()
    for _ in range(10):
        LiquidConfig(data=data)
    assert time.perf_counter() - start < 0.1
