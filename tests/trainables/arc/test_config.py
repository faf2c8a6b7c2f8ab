"""Show that all mistakes in a config of the ARC task are told before anything starts, each in one line."""

import json
from functools import partial

import pytest

from searchlight.models.arc.puzzles import load_puzzles
from searchlight.trainables.arc import data
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.task import TaskConfig
from tests.trainables.task import config_problems

problems = partial(config_problems.problems, ArcConfig)
assert_told = partial(config_problems.assert_one_line, ArcConfig)


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"prompt.model": "/nowhere"}, "prompt.model must be a folder with a model or an id of the hub, but got /nowh"),
        ({"prompt.model": "a/b/c"}, "prompt.model must be a folder with a model or an id of the hub, but got a/b/c"),
        ({"prompt.modle": "x"}, "prompt.modle must name a parameter, but there is no 'prompt.modle'. Did you mean 'p"),
        ({"prompt.train": "half"}, "prompt.train must be 'frozen' or 'full', but got 'half'"),
        ({"prompt.revision": "v1"}, "prompt.revision must be none where prompt.model is none, but got v1"),
        ({"prompt.cache": ""}, "prompt.cache must be a folder, but got ''"),
        ({"prompt.cache": "there", "prompt.train": "full"}, "prompt.cache must be none with prompt.train=full"),
        ({"data": "/nowhere"}, "data must be arc-agi-1, arc-agi-2, generated, generated-easy, or a folder of puzzles"),
        ({"evaluation_data": "/nowhere"}, "evaluation_data must be arc-agi-1, arc-agi-2, generated, generated-easy"),
        ({"max_side": "2"}, "max_side must keep at least one training puzzle of arc-agi-1, but got 2. Raise it"),
        ({"max_side": "5", "data": "generated"}, "max_side must be at least 6 for generated puzzles, but got 5"),
        ({"samples": "1"}, "samples must be greater than or equal to 2, but got '1'"),
        ({"curriculum": "1.5"}, "curriculum must be less than or equal to 1, but got '1.5'"),
        ({"entropy_weight": "-1"}, "entropy_weight must be greater than or equal to 0, but got '-1'"),
        ({"width": "1"}, "width must be greater than or equal to 2, but got '1'"),
    ],
)
def test_mistake_is_one_line_that_says_what_is_right(fixed, told):
    assert_told(fixed, told)


@pytest.mark.parametrize("name", ["policy_lr", "prompt_lr", "accumulation", "programs", "episodes", "batch_size"])
def test_positive_parameter_is_neither_set_nor_searched_at_0(name):
    assert_told({name: "0"}, f"{name} must be greater than ")
    (line,) = problems({}, {name: "0..1" if name.endswith("lr") else "0,1"})
    assert line.startswith(f"--search {name} must be greater than ")


@pytest.mark.parametrize("name", [name for name in ArcConfig.model_fields if name.endswith(("_weight", "_scale"))])
def test_negative_weight_is_a_mistake(name):
    assert_told({name: "-1"}, f"{name} must be greater than ")


def test_default_space_holds_what_the_task_is_searched_for():
    searched = {name for name, field in ArcConfig.model_fields.items() if "search" in (field.json_schema_extra or {})}
    assert searched == {"policy_lr", "prompt_lr", "reward_scale", "curriculum", "precision"}
    assert len(ArcConfig.model_fields) - len(TaskConfig.model_fields) < 25


def test_all_mistakes_are_told_at_once():
    wrong = {"prompt.model": "/no", "data": "/no", "evaluation_data": "/no"}
    assert [line.split(" must ")[0] for line in problems(wrong)] == list(wrong)
    wrong = {"prompt.revision": "v1", "prompt.cache": "vectors", "max_side": "2"}
    assert [line.split(" must ")[0] for line in problems({**wrong, "prompt.train": "full"})] == list(wrong)


def puzzle(*sides):
    """Return a puzzle as ARC-AGI lays it out, with a demonstration of each side, and a test of a side of its own."""
    *shown, asked = [{"input": [[1] * side] * side, "output": [[2] * side] * side} for side in (*sides, sum(sides))]
    return {"train": shown, "test": [asked]}


def folder(path, **splits):
    for split, content in splits.items():
        (path / split).mkdir(parents=True)
        for number, one in enumerate(content):
            (path / split / f"{split}{number}.json").write_text(json.dumps(one))
    return str(path)


def test_folder_of_re_arc_needs_other_evaluation_puzzles(tmp_path):
    source = load_puzzles("generated", "training", max_side=6)[0]
    pairs = [{"input": a.tolist(), "output": b.tolist()} for a, b in source.pairs] * 4
    path = folder(tmp_path, tasks=[pairs])
    assert_told({"data": path}, f"data must have an evaluation split, but got {path!r} in the layout of re-arc")
    assert_told({"evaluation_data": path, "data": "generated"}, "evaluation_data must have an evaluation split")
    assert ArcConfig(data=path, evaluation_data="generated-easy").data == path


def test_leaked_puzzles_are_refused_dropped_or_kept_as_asked(tmp_path):
    shared, other = puzzle(3, 4), puzzle(4, 5)
    path = folder(tmp_path, training=[shared, other], evaluation=[shared, puzzle(5, 6)])
    assert_told({"data": path}, "data must share no puzzle with evaluation, but 1 of its 2 are there too")
    found = [data.load(path, None, 12, leak) for leak in ("drop", "allow")]
    assert [len(puzzles.training) for puzzles in found] == [1, 2]


def test_data_without_enough_puzzles_is_a_mistake(tmp_path):
    both = [puzzle(3, 4), puzzle(4, 5)]
    same = folder(tmp_path / "same", training=both[:1], evaluation=both)
    assert_told({"data": same, "leak": "drop"}, "data must hold puzzles that evaluation does not")
    one = folder(tmp_path / "one", training=both[:1], evaluation=both[1:])
    assert_told({"data": one}, "data must have two evaluation puzzles, one for the objective and one whose tests are")
    single = folder(tmp_path / "single", training=[puzzle(3)], evaluation=[puzzle(5), puzzle(6)])
    assert_told({"data": single}, "data must have a puzzle with two demonstrations, one to be hidden, but got ")


def test_config_is_checked_again_without_reading_its_data(tmp_path, monkeypatch):
    """A search makes several per trial."""
    path = folder(tmp_path, training=[puzzle(3, 4)], evaluation=[puzzle(5, 6), puzzle(6, 6)])
    ArcConfig(data=path)
    monkeypatch.setattr(data, "load_puzzles", lambda *arguments: pytest.fail("puzzles were read again"))
    ArcConfig(data=path)
    ArcConfig()  # nothing can be wrong with the sources of the package


@pytest.mark.slow
@pytest.mark.parametrize("source", ["arc-agi-1", "arc-agi-2", "generated", "generated-easy"])
def test_source_of_the_package_is_right_without_a_check(source):
    assert data.load(source, None, data.SAFE_SIDE, "refuse").evaluation


def test_relative_paths_become_absolute_for_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    folder(tmp_path / "puzzles", training=[puzzle(3, 4)], evaluation=[puzzle(5, 6), puzzle(6, 6)])
    config = ArcConfig(data="puzzles", prompt={"model": "model", "cache": "not/yet/there"})
    assert (config.data, config.prompt.model) == (str(tmp_path / "puzzles"), str(tmp_path / "model"))
    assert config.prompt.cache == str(tmp_path / "not" / "yet" / "there")
    both = {"prompt.model": "model", "prompt.revision": "v1"}
    assert_told(both, "prompt.revision must be none where prompt.model is a folder, but got v1")
    assert ArcConfig(prompt={"model": "Qwen/Qwen2.5-1.5B"}).prompt.model == "Qwen/Qwen2.5-1.5B"
    assert ArcConfig.model_validate(config.model_dump(mode="json", round_trip=True)) == config
