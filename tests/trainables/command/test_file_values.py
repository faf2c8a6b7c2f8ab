import ast
import json
import re
import tomllib

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from searchlight.trainables.command.file_values import find_values, replace_values

READ = {"a.yaml": yaml.safe_load, "a.json": json.loads, "a.toml": tomllib.loads}
NAMES = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True)
# What a search gives; texts without the characters that TOML and YAML do not allow in files.
VALUES = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=12),
)
DOCUMENTS = st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), min_size=1, max_size=3)
PYTHON = """# coding: utf-8
import config  # ü

lr = 1e-3  # global
batch_size: int = 32 * 1024


def main(seed=-1, *, depth=(2), name="ä") -> None:
    '''Train.'''
    config = {"lr": 2e-5, "betas": (0.9, 0.999), name: 3}
    if depth:
        config["warmup"] = 100
        optimizer = AdamW(model.parameters(), lr=config["lr"], weight_decay=0.01, fused=True)
    np.random.seed(7); random.seed(8)
    Trainer(precision="bf16").fit(model, 12)
    model = Net(32, bias=False).half().to("cuda"); loss = make(1)(2)
    return train(optimizer, steps=10)


class Net(Module):
    width: int = field(default=16)

    def build(self):
        self.dropout = 0.5; self.bias = True
        self.layers = Sequential(Linear(4, 64), Dropout(0.25), *others)


if __name__ == "__main__":
    main(seed=3)
"""


def set_at(document, key, value):
    *path, last = key.split(".")
    for name in path:
        document = document[name]
    document[last] = value


@pytest.mark.parametrize("name", READ)
@given(document=DOCUMENTS, value=VALUES, data=st.data())
def test_replaced_value_is_read_back_and_no_other_changes(name, document, value, data):
    text = {"a.yaml": yaml.safe_dump, "a.json": json.dumps, "a.toml": write_toml}[name](document)
    key = data.draw(st.sampled_from([f"{group}.{key}" for group, keys in document.items() for key in keys]))
    set_at(document, key, value)
    assert READ[name](replace_values(name, text, {key: value})) == document


def write_toml(document):
    lines = []
    for group, keys in document.items():
        lines += [f"[{group}]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())]
    return "\n".join(lines)


EDITS = [
    ("a.yaml", "# a\nopt:\n  lr:   1   # b\n  n: 2\n", {"opt.lr": 1e-05}, "# a\nopt:\n  lr:   1.0e-05   # b\n  n: 2\n"),
    ("a.yaml", "opt: {lr: 0.1, n: 2}\r\n", {"opt.lr": "no", "opt.n": 3}, "opt: {lr: 'no', n: 3}\r\n"),
    ("a.yml", "lr:\nn: 1", {"lr": 0.5}, "lr: 0.5\nn: 1"),
    ("a.yaml", "lr: &x 0.1\nn: *x", {"lr": 0.5}, "lr: &x 0.5\nn: *x"),
    ("a.yaml", "text: |\n  a\n  b\nlr: ${base.lr}", {"text": "c", "lr": True}, "text: c\nlr: true"),
    ("a.yaml", "layers:\n- size: 1\n- size: 2\n", {"layers.1.size": 3}, "layers:\n- size: 1\n- size: 3\n"),
    ("a.yaml", "data: !include b.yaml\nlr: 1", {"lr": 2}, "data: !include b.yaml\nlr: 2"),
    ("a.json", '{\n\t"a":{"lr":0.1, "n": null}}', {"a.lr": 1e-05, "a.n": "ü"}, '{\n\t"a":{"lr":1e-05, "n": "ü"}}'),
    ("a.toml", "lr = 1 # lr = 2\n[opt]\nlr=0.1\n", {"opt.lr": 1e-05}, "lr = 1 # lr = 2\n[opt]\nlr=1e-05\n"),
    (
        "a.toml",
        "a = {lr = 0.1, n = 2}\nb.lr = 'a # b'",
        {"a.lr": True, "b.lr": "c"},
        'a = {lr = true, n = 2}\nb.lr = "c"',
    ),
    ("a.toml", "[[a]]\nsize = 1\n[[a]]\nsize = 2", {"a.1.size": 3}, "[[a]]\nsize = 1\n[[a]]\nsize = 3"),
]


@pytest.mark.parametrize(("name", "before", "values", "after"), EDITS)
def test_comments_order_and_spaces_are_kept(name, before, values, after):
    assert replace_values(name, before, values) == after


def test_literals_of_python_are_found_by_the_names_around_them():
    places = find_values("a.py", PYTHON)
    found = {key: [PYTHON[place.start : place.end] for place in of_key] for key, of_key in places.items()}
    assert found == {
        "lr": ["1e-3"],
        "batch_size": ["32 * 1024"],
        "main.seed": ["-1", "3"],
        "main.depth": ["2"],
        "main.name": ['"ä"'],
        "main.config.lr": ["2e-5"],
        "main.config.betas.0": ["0.9"],
        "main.config.betas.1": ["0.999"],
        "main.config.warmup": ["100"],
        "main.optimizer.weight_decay": ["0.01"],
        "main.optimizer.fused": ["True"],
        "main.np.random.seed.0": ["7"],
        "main.random.seed.0": ["8"],
        "main.Trainer.precision": ['"bf16"'],
        "main.Trainer.fit.1": ["12"],
        "main.model.0": ["32"],
        "main.model.bias": ["False"],
        "main.model.to.0": ['"cuda"'],
        "main.loss.0": ["1", "2"],
        "main.train.steps": ["10"],
        "Net.width.default": ["16"],
        "Net.build.self.dropout": ["0.5"],
        "Net.build.self.bias": ["True"],
        "Net.build.self.layers.0.0": ["4"],
        "Net.build.self.layers.0.1": ["64"],
        "Net.build.self.layers.1.0": ["0.25"],
    }


@given(st.dictionaries(st.sampled_from(["lr", "main.name", "main.config.betas.1", "Net.build.self.dropout"]), VALUES))
def test_patched_code_differs_in_the_values_alone(values):
    literals = {"1e-3": "lr", '"ä"': "main.name", "0.999": "main.config.betas.1", "0.5": "Net.build.self.dropout"}
    patched = replace_values("a.py", PYTHON, values)
    new = {literal: repr(values[key]) for literal, key in literals.items() if key in values}
    expected = re.sub("|".join(literals), lambda match: new.get(match[0], match[0]), PYTHON)
    assert patched == expected
    assert ast.parse(patched)


@given(st.text(max_size=40), st.sampled_from(["a.yaml", "a.json", "a.toml", "a.py"]))
def test_any_text_is_read_or_refused(text, name):
    try:
        places = find_values(name, text)
    except ValueError:
        return
    for key in places:
        assume(len(places[key]) == 1)
        place = places[key][0]
        assert 0 <= place.start <= place.end <= len(text)


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml", "a.py"])
def test_text_in_another_format_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be well-formed"):
        find_values(name, "a = [1\nb: {")


def test_value_that_another_shares_is_refused():
    with pytest.raises(ValueError, match="another value of the file would change too"):
        replace_values("a.py", "lr = warmup_lr = 0.1", {"lr": 0.2})


def test_name_with_several_values_is_refused():
    with pytest.raises(ValueError, match="must have one value lr, but has 2"):
        replace_values("a.py", "lr = 0.1\nlr = 0.2", {"lr": 0.3})
