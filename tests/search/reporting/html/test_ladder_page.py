"""The page of searches at several sizes."""

from searchlight.search.analysis.ladder import Ladder
from searchlight.search.reporting.html.ladder import render_ladder
from tests.search.analysis.test_ladder import search_at


def test_page_has_the_setting_its_law_and_the_pictures():
    page = render_ladder("grown", Ladder([search_at(8), search_at(16)], {"width": 2048}, {}))
    for text in (
        "The setting for width=2048",
        "exponent or slope of width",
        "no confidence interval",
        "Caution: width=2048 is 128 times beyond",
        "The sizes",
    ):
        assert text in page
    assert "90 %" not in page
    assert page.count('data-figure="') == 4  # losses and path, of two parameters
