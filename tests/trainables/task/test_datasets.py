"""Show that a data set is told from another by its content alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables.context import Context
from searchlight.trainables.task import DataSet, digest_of
from tests.trainables.toy_models import Regression, RegressionConfig

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(plain, plain)
def test_plain_values_share_a_digest_exactly_if_equal(one, other):
    assert digest_of(one) == digest_of(one)
    reordered = dict(reversed(one.items())) if isinstance(one, dict) else one
    assert digest_of(reordered) == digest_of(one)
    if "{" not in f"{one!r}{other!r}":
        assert (digest_of(one) == digest_of(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    "others",
    [
        [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3).double(), np.zeros((2, 3), "f4")],
        [["ab", "c"], ["a", "bc"], ["abc"], "abc", b"abc", [["ab"], "c"], [["ab", "c"]]],
        [1, 1.0, True, "1", None, [1], {"1": 1}],
        [torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor(0.0)],
        [np.array(["a", "b"]), np.array(["a", "b"], dtype=object), np.array([["a"], ["b"]], dtype=object)],
    ],
)
def test_different_kinds_of_data_have_different_digests(others):
    assert len({digest_of(data) for data in others}) == len(others)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_layout_of_a_tensor_does_not_change_its_digest(dtype):
    data = torch.arange(12).reshape(3, 4).to(dtype)
    assert digest_of(data.t().contiguous().t()) == digest_of(data)
    assert digest_of(data.clone().requires_grad_(dtype.is_floating_point)) == digest_of(data)
    changed = data.clone()
    changed[2, 3] = 0
    assert digest_of(changed) != digest_of(data)


def test_path_is_digested_by_the_names_and_content_of_its_files(tmp_path):
    def folder(name, **files):
        for file, content in files.items():
            path = tmp_path / name / file.replace("_", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path / name

    one = folder("one", a="1", sub_b="2")
    assert digest_of(folder("two", sub_b="2", a="1")) == digest_of(one)
    others = [folder("three", a="1", b="2"), folder("four", a="12"), folder("five", a="1", sub_b="3")]
    assert digest_of(one) not in {digest_of(other) for other in others}
    assert digest_of(one / "a") == digest_of(others[0] / "a") != digest_of(one / "sub" / "b")
    with pytest.raises(FileNotFoundError):
        digest_of(tmp_path / "none")


def test_task_names_its_data_by_content_or_digest_on_rank_0():
    task = Regression(RegressionConfig())
    task.dataset("sines", torch.ones(2), source="made here")
    task.dataset("puzzles", digest="abc", use="evaluation")
    task.dataset = task.datasets = {"train": [1, 2]}  # a task may have data of its own under the usual names
    assert task.named_data == [
        DataSet("sines", digest_of(torch.ones(2)), "made here"),
        DataSet("puzzles", "abc", "", "evaluation"),
    ]
    other = Regression(RegressionConfig(), Context(rank=1, world_size=2))
    other.dataset("sines", object())
    assert other.named_data == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "x"}, "dataset must get data or a digest, but got neither"),
        ({"name": "x", "data": [Context()]}, r"but got Context\. Give a digest: self\.dataset\(name, digest=\.\.\.\)"),
        ({"name": "x", "data": [1], "digest": "a"}, "dataset must get data or a digest, but got both"),
        ({"name": "", "digest": "a"}, "must have a name of at most 500 characters, but got ''"),
        ({"name": "x", "digest": "a", "use": "test"}, "must have the use 'training' or 'evaluation', but got 'test'"),
    ],
)
def test_wrong_data_set_raises_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        Regression(RegressionConfig()).dataset(**arguments)
