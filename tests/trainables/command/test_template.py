import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.trainables.command.settings import CommandSettings, FileTarget, Flag
from searchlight.trainables.command.template import fill, fill_text, find_placeholders, list_flags

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}(\.[a-z]{1,3})?", fullmatch=True)
LITERAL = st.text(st.characters(exclude_characters="{}$", exclude_categories=["Cs"]), max_size=8)


def make_settings(command: str, folder: Path = Path("/nowhere"), **further) -> CommandSettings:
    words = tuple(shlex.split(command))
    return CommandSettings(words=words, folder=str(folder), trial_root="/runs", objectives=("loss",), **further)


@given(st.dictionaries(NAMES, LITERAL, min_size=1), st.lists(LITERAL, min_size=1, max_size=4))
def test_each_placeholder_gets_its_value_and_all_other_text_stays(texts, between):
    names = [*texts]
    template = "".join(f"{part}{{{name}}}" for part, name in zip(between, names * 4, strict=False))
    filled = "".join(f"{part}{texts[name]}" for part, name in zip(between, names * 4, strict=False))
    assert fill_text(template, texts) == filled


@given(LITERAL, NAMES)
def test_double_braces_around_a_name_become_single_ones(text, name):
    assert fill_text(f"{text}{{{{{name}}}}}", {name: "filled"}) == f"{text}{{{name}}}"


@pytest.mark.parametrize("word", ['{"a": {"b": 1}}', "{1..3}", "${HOME}", "x{3}", "{}", "{print $1}", "${model.lr}"])
def test_braces_of_the_program_are_no_placeholders(word):
    assert fill_text(word, {"HOME": "wrong", "model.lr": "wrong"}) == word
    assert find_placeholders([word]) == []


def test_placeholder_in_json_is_filled():
    word = '{"model": {"depth": {depth}}}'
    assert json.loads(fill_text(word, {"depth": "3"})) == {"model": {"depth": 3}}


def test_placeholder_with_hyphens_takes_the_parameter_with_underscores():
    assert fill_text("{learning-rate}", {"learning_rate": "0.1"}) == "0.1"


def test_placeholder_without_a_value_is_named():
    with pytest.raises(ValueError, match=r"\{epochs\} in the command must have a value"):
        fill_text("--epochs={epochs}", {"epoch": "3"})


def test_parameters_follow_the_command_by_their_flags():
    flags = {
        "lr": Flag(("--lr", "{value}")),
        "opt.depth": Flag(("opt.depth={value}",)),
        "fp16": Flag(("--fp16",)),
        "cache": Flag(("--cache",), ("--no-cache",)),
        "absent": Flag(("--absent", "{value}")),
        "bf16": Flag(("--bf16={value}",)),
    }
    values = {"lr": 1e-05, "opt.depth": 3, "fp16": False, "cache": False, "bf16": False}
    launch = fill(make_settings("python train.py --seed {seed}", flags=flags), values, {"seed": "7"}, {})
    expected = "python train.py --seed 7 --lr 1e-05 opt.depth=3 --no-cache --bf16=False"
    assert launch.argv == expected.split()
    on = fill(make_settings("train", flags=flags), {"fp16": True, "cache": True}, {}, {})
    assert on.argv == ["train", "--fp16", "--cache"]


def test_value_with_braces_is_not_filled_again():
    flags = {"a": Flag(("--a", "{value}"))}
    launch = fill(make_settings("run --b={b}", flags=flags), {"a": "{b}", "b": "{value}"}, {}, {})
    assert launch.argv == ["run", "--b={value}", "--a", "{b}"]


def test_resuming_words_come_from_the_second_start_on():
    settings = make_settings("train", resume_with=("--resume", "{checkpoint_dir}/last"))
    places = {"checkpoint_dir": "/runs/3/checkpoints"}
    assert fill(settings, {}, places, {}).argv == ["train"]
    assert fill(settings, {}, places, {}, is_restart=True).argv == ["train", "--resume", "/runs/3/checkpoints/last"]


def test_program_knows_its_trial_and_no_rank_of_its_worker():
    outer = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "b"}
    outer |= {"SLURM_PROCID": "1", "SLURM_JOB_ID": "17", "HOME": "/home/me"}
    launch = fill(make_settings("train"), {"lr": 0.5, "model.depth": 3}, {"trial": "3", "trial_dir": "/t"}, outer)
    params = launch.environment.pop("SEARCHLIGHT_PARAMS")
    assert json.loads(params) == {"lr": 0.5, "model.depth": 3}
    own = {"SEARCHLIGHT_TRIAL": "3", "SEARCHLIGHT_TRIAL_DIR": "/t", "SEARCHLIGHT_OBJECTIVES": '["loss"]'}
    assert launch.environment == {"HOME": "/home/me", "SLURM_JOB_ID": "17", **own}


def test_files_take_values_and_the_command_the_path_of_the_copy(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text("lr: 0.1  # of Adam\n")
    (tmp_path / "train.py").write_text("import net\n")
    (tmp_path / "net.py").write_text("DEPTH = 2\n")
    settings = make_settings(
        "python train.py --config {conf/base.yaml}",
        tmp_path,
        files=(FileTarget("conf/base.yaml", "lr", "lr"), FileTarget("conf/base.yaml", "absent", "absent")),
        patches=(FileTarget("net.py", "DEPTH", "depth"),),
    )
    launch = fill(settings, {"lr": 1e-05, "depth": 3}, {"trial_dir": "/runs/3"}, {})
    assert launch.argv[-1] == "/runs/3/conf/base.yaml"
    copies = {"conf/base.yaml": "lr: 1.0e-05  # of Adam\n", "net.py": "DEPTH = 3\n", "train.py": "import net\n"}
    assert launch.files == copies


TEXTS = ["adam", "a,b", "a b", " a", "it's", "{a: 1}", "x=1", "(a)", "[a", 'say "a"', "a\\", "\\'", "", "a\n"]
TEXTS += ["12", "1e-5", "true", "null", "data/a.bin", "http://x:80/y", "-x"]


@pytest.mark.parametrize("value", [*TEXTS, 0.1, 1e-05, -3, True, None, [1, 2], ["a,b", 0.5, None], []])
def test_hydra_reads_an_override_as_the_same_value(value):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    [word] = list_flags({"key": Flag(("key={value}",), is_hydra=True)}, {"key": value})
    override = parser.parse_override(word)
    assert not override.is_sweep_override()
    assert [override.key_or_group, override.value()] == ["key", value]


def test_hydra_reads_the_text_of_a_list_as_a_list():
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    [word] = list_flags({"key": Flag(("key={value}",), is_hydra=True)}, {"key": "[64, adam, [0.5]]"})
    assert parser.parse_override(word).value() == [64, "adam", [0.5]], "choices of a search are texts"


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("adam", "adam"),
        ("a,b", "'a,b'"),
        ("it's {a}", r"'it\'s {a}'"),
        ("a\\", r"'a\\'"),
        ("12", "'12'"),
        (12, "12"),
        (True, "True"),
        (None, "null"),
        (["a b", 1], "['a b',1]"),
    ],
)
def test_text_with_special_characters_is_in_quotes_for_hydra(value, word):
    assert list_flags({"key": Flag(("key={value}",), is_hydra=True)}, {"key": value}) == [f"key={word}"]
