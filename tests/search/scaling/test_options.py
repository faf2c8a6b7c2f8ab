"""The options of a search over sizes."""

import pytest

from searchlight.search.config import SearchConfig, load_config
from searchlight.search.config.loading import to_yaml
from searchlight.search.errors import UsageError
from searchlight.search.option import read_yaml
from searchlight.search.scaling.options import ScalingOptions

GROWN = {"width64-depth2": {"width": 64, "depth": 2}, "width128-depth4": {"width": 128, "depth": 4}}


@pytest.mark.parametrize(
    "sizes",
    [
        "width=64,128 depth=2,4",
        ("width=64,128", "depth=2,4"),
        [{"width": 64, "depth": 2}, {"width": 128, "depth": 4}],
        GROWN,
    ],
    ids=["text", "texts", "list", "names"],
)
def test_sizes_are_read_from_a_command_line_and_from_a_file(sizes):
    options = ScalingOptions(sizes=sizes, target="width=512 depth=8")
    assert options.sizes == GROWN
    assert options.target == {"width": 512, "depth": 8}
    assert [*options.find_problems()] == []


def test_sizes_survive_search_yaml():
    given = {
        "task": "lm",
        "sizes": ("width=64,128", "workers=1,2"),
        "target": ("width=512",),
        "exponent": ("lr/width=-1",),
    }
    config = load_config(given)
    again = SearchConfig(**read_yaml(to_yaml(config)))
    assert (again.sizes, again.target, again.exponents) == (config.sizes, {"width": 512}, {"lr": {"width": -1}})
    assert again.sizes["width128"] == {"width": 128, "workers": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sizes": "width"}, "--sizes must be like width=64,128,256, but got 'width'"),
        (
            {"sizes": "width=64,128 depth=2"},
            "--sizes must have as many values of each parameter, but got 2 of width, 1 of",
        ),
        ({"sizes": "width=64"}, "--sizes must be at least two, but got 1."),
        ({"sizes": "width=128,64"}, "--sizes must go from small to large, but got width128, width64."),
        ({"sizes": "width=-1,64"}, "--sizes must be above 0, but got {'width': -1.0}."),
        ({"sizes": "width=64,128", "target": "depth=4"}, "--sizes and --target must have the same parameters"),
        ({"sizes": "width=64,128", "target": "width=256,512"}, "--target must be one size, but got 2"),
        ({"target": "width=256"}, "--target must come with --sizes, but got none."),
        ({"sizes": "64,128 32,64"}, "--sizes must be like width=64,128,256, but got '32,64'"),
        ({"sizes": "width=64,128", "exponent": "lr=-1"}, "--exponent must be like lr/width=-1, but got 'lr'"),
        ({"sizes": "width=64,128", "exponent": "lr/depth=-1"}, "--exponent must name a parameter of --sizes, width,"),
        ({"sizes": "width=a,b"}, "--sizes.widtha.width must be a valid number, but got 'a'."),
    ],
)
def test_wrong_sizes_are_refused_in_a_line(given, message):
    with pytest.raises(UsageError) as refused:
        load_config({"task": "lm", **given})
    assert message in str(refused.value)
