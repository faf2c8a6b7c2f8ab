import pytest

from searchlight.search.space.constraints import Constraint, parse_constraint


@pytest.mark.parametrize(
    ("text", "value", "violation"),
    [
        ("val/latency_ms<=20", 25.0, 5.0),
        ("val/latency_ms <= 20", 20.0, 0.0),
        ("val/latency_ms<=2e1", 15.0, -5.0),
        ("val/latency_ms>=20", 25.0, -5.0),
        ("val/latency_ms>=20", 15.0, 5.0),
    ],
)
def test_violation_is_the_distance_beyond_the_bound(text, value, violation):
    assert Constraint.from_text(text).measure_violation({"val/latency_ms": value}) == violation


@pytest.mark.parametrize("text", ["latency", "latency<20", "latency>20", "latency<=nan", "<=20", "latency=20"])
def test_other_form_is_refused_with_the_right_one(text):
    with pytest.raises(ValueError, match=r"must be like val/latency_ms<=20, with <= or >=, but got '"):
        parse_constraint(text)


def test_constraint_has_one_form():
    assert parse_constraint(" val/latency_ms >= 2e1 ") == "val/latency_ms>=20"
