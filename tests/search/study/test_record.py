import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import build_record

POINT = {"lr": 0.1}


@pytest.mark.parametrize(
    ("about", "has_defaults"),
    [
        ({"first": [POINT], "defaults": POINT}, True),
        ({"first": [POINT], "defaults": {}}, False),  # the user gave the point
        ({"first": [POINT]}, True),  # of an older search, which began with the defaults
        ({"first": [{}, POINT]}, False),
        ({"first": []}, False),
    ],
)
def test_trial_of_the_defaults_is_no_point_that_the_user_gave(about, has_defaults):
    trial = create_trial(params=POINT, distributions={"lr": FloatDistribution(0, 1)}, value=0.5)
    record = build_record("one", [trial], (Objective("loss", "min"),), about)
    assert (record.default_trial is not None) == has_defaults
