"""What regions leave of a search space."""

import pytest

from searchlight.search.errors import UsageError
from searchlight.search.space.search_space import resolve_space
from searchlight.search.steering.allowed_space import check_rest, parse_region_of
from searchlight.trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    width: int = searchable(64, low=64, high=512, step=64)
    drop: float = searchable(0.0, low=0.0, high=0.5, step=0.25)


SPACE = resolve_space(Config, {"precision": "fp32"}, {})


@pytest.mark.parametrize(
    ("avoided", "warnings"), [(["width!=128"], []), (["drop!=0.25"], []), (["width!=128", "drop!=0.25"], ["about 4 %"])]
)
def test_values_of_steps_are_counted(avoided, warnings):
    told = check_rest([parse_region_of(text, SPACE) for text in avoided], SPACE)
    assert [line[:9] for line in told] == warnings


@pytest.mark.parametrize("avoided", [["drop=0.0", "drop=0.25", "drop=0.5"], ["width<100", "width>120"]])
def test_regions_between_steps_leave_nothing(avoided):
    with pytest.raises(UsageError, match=r"but 0\.0% of 24 configs are left"):
        check_rest([parse_region_of(text, SPACE) for text in avoided], SPACE)
