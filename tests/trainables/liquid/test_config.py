"""Show that each mistake in a config of the liquid task is told in one line before anything starts."""

from functools import partial

import pytest

from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.liquid import data
from searchlight.trainables.liquid.config import LiquidConfig
from tests.trainables.task.config_problems import assert_one_line

STRENGTHS = ("consolidation.ewc_strength", "consolidation.si_strength")
NO_DATA = "data must be digits, text, series, hub:NAME or a folder, but got "
assert_told = partial(assert_one_line, LiquidConfig)


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"epochs": "4"}, "epochs must be at least continual.tasks, 5, but got 4. Each task is learned for an epoch"),
        ({"continual.tasks": "11", "epochs": "20"}, "continual.tasks must be between 1 and the 10 classes, but got 11"),
        ({"continual.tasks": "6", "data": "series"}, "continual.tasks must be between 1 and the 5 domains, but got 6"),
        (
            {"continual.tasks": "6", "continual.scenario": "domain"},
            "continual.tasks must give each task at least",
        ),
        ({"continual.scenario": "all"}, "continual.scenario must be 'task', 'domain' or 'class', but got 'all'"),
        ({"data": "digts"}, f"{NO_DATA}'digts': there is no such folder"),
        ({"data": "idx:/nowhere"}, f"{NO_DATA}'idx:/nowhere': there is no such folder"),
        ({"data": ""}, f"{NO_DATA}''"),
        ({"data": "hub:"}, "data must name a data set, hub:owner/name, but got 'hub:'"),
        ({"length": "0"}, "length must be greater than or equal to 1, but got '0'"),
        ({"spiking.decay": "1"}, "spiking.decay must be less than 1, but got '1'"),
        ({"spiking.decay": "0"}, "spiking.decay must be greater than 0, but got '0'"),
        ({"spiking.threshold": "0"}, "spiking.threshold must be greater than 0, but got '0'"),
        ({"spiking.slope": "nan"}, "spiking.slope must be"),
        ({"spiking.surrogate": "step"}, "spiking.surrogate must be 'atan' or 'fast_sigmoid', but got 'step'"),
        ({"cell": "lstm"}, "cell must be 'cfc', 'liquid' or 'ncp', but got 'lstm'"),
        ({"units": "2"}, "units must be greater than or equal to 3, but got '2'"),
        ({"spiking.lowest_rate": "0.6"}, "spiking must have a lowest_rate of at most its highest_rate, 0.5, but got 0"),
        (
            {"spiking.dcay": "0.5"},
            "spiking.dcay must name a parameter, but there is no 'spiking.dcay'. Did you mean 's",
        ),
        ({"plasticity.rate": "inf"}, "plasticity.rate must be a finite number, but got 'inf'"),
        ({"plasticity.tau": "0"}, "plasticity.tau must be greater than 0, but got '0'"),
        (
            {"consolidation.ewc_strength": "-1"},
            "consolidation.ewc_strength must be greater than or equal to 0, but got",
        ),
        ({"consolidation.si_strength": "inf"}, "consolidation.si_strength must be a finite number, but got 'inf'"),
        ({"replay.size": "0"}, "replay.size must be greater than 0, but got '0'"),
        ({"plasticity.target_rate": "0"}, "plasticity.target_rate must be greater than 0, but got '0'"),
        ({"consolidation.decay": "1.5"}, "consolidation.decay must be less than or equal to 1, but got '1.5'"),
        ({"replay.fraction": "1"}, "replay.fraction must be less than 1, but got '1'"),
        ({"warmup": "1.5"}, "warmup must be less than or equal to 1, but got '1.5'"),
    ],
)
def test_mistake_is_one_line_that_says_what_is_right(fixed, told):
    assert_told(fixed, told)


def test_folder_needs_enough_text_for_its_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    fixed = {"data": "texts", "continual.tasks": "1"}
    assert_told(fixed, "data must be a folder with a .txt file, or a subfolder of them, for each domain, but got")
    (tmp_path / "texts" / "short.txt").write_text("too short")
    assert_told(fixed, "data must have at least 1290 bytes in each domain for windows of 128, but got 9 in short")
    (tmp_path / "texts" / "short.txt").write_text("long enough " * 200)
    assert_told({**fixed, "continual.tasks": "2"}, "continual.tasks must be between 1 and the 1 domains, but got 2")
    # Workers run elsewhere.
    assert LiquidConfig(data="texts", continual={"tasks": 1}).data == str(tmp_path / "texts")


def test_parameters_are_searched_only_where_they_matter():
    parameters = {parameter.name: parameter for parameter in resolve_space(LiquidConfig, {}, {}).parameters}
    assert not [name for name in parameters if name.startswith("plasticity")], "no rule is shown to help"
    for name, method in zip(STRENGTHS, ("ewc", "si"), strict=True):
        active = [m for m in ("none", "ewc", "si") if parameters[name].is_active({"consolidation.method": m})]
        assert active == [method]


def test_config_is_checked_again_without_reading_its_data(monkeypatch):
    """A search makes several per trial."""
    for source in ("digits", "series"):
        LiquidConfig(data=source)
    monkeypatch.setattr(data, "load", lambda *arguments: pytest.fail("data was read again"))
    for source in ("digits", "series", "text"):
        LiquidConfig(data=source)
