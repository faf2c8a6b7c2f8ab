"""Searches at several sizes: what each of them is given, and what is left of them when they are resumed."""

import pytest

from searchlight.search.config.loading import load_config, to_yaml
from searchlight.search.option import read_yaml



@pytest.mark.parametrize(
    "task", [{"task": "liquid"}, {"command": ["train", "{lr}", "{checkpoint_dir}"], "set": {"epochs": 3}}]
)
@pytest.mark.parametrize(("given", "scheduler"), [({}, "none"), ({"scheduler": "median"}, "median")])
def test_scheduler_is_the_same_after_a_resume(task, given, scheduler):
    config = load_config({**task, **given, "search": {"lr": "0.1..1"}, "sizes": ["width=8,16"]})
    resumed = load_config(read_yaml(to_yaml(config)))
    assert [config.scheduler, resumed.scheduler] == [scheduler, scheduler]
