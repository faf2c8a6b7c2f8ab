"""Conditions on values, as a user writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.steering.region import parse_region


def parse(text):
    return parse_region(text, lambda name, value: float(value) if value[0].isdigit() else value)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("width>=1024", {"width": 1024}, {"width": 1023}),
        ("batch_size>=512 and width>=1024", {"batch_size": 512, "width": 2048}, {"batch_size": 512, "width": 4}),
        ("precision=fp16", {"precision": "fp16"}, {"precision": "bf16"}),
        ("precision==fp16", {"precision": "fp16"}, {"precision": "fp32"}),
        ("precision!=fp16", {"precision": "bf16"}, {"precision": "fp16"}),
        ("val/loss<0.3 and epoch>3", {"val/loss": 0.2, "epoch": 4}, {"val/loss": 0.2, "epoch": 3}),
        ("lr>1e-3", {"lr": 0.1}, {}),
        ("lr>1e-3", {"lr": 0.1}, {"lr": "a text"}),
    ],
)
def test_region_contains_what_meets_all_conditions(text, inside, outside):
    region = parse(text)
    assert region.contains(inside)
    assert not region.contains(outside)


@pytest.mark.parametrize("text", ["", "width", "width>=", ">=3", "a>1 or b>2 and", "width=>3 and"])
def test_region_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match="must be like batch_size>=512 and width>=1024, but got"):
        parse(text)


@given(st.floats(0, 1), st.floats(0, 1))
def test_bound_splits_all_values(value, bound):
    above, below = (
        parse_region(f"x>={bound!r}", lambda _, v: float(v)),
        parse_region(f"x<{bound!r}", lambda _, v: float(v)),
    )
    assert above.contains({"x": value}) != below.contains({"x": value})
