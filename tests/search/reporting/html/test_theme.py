"""Tests the contrast of colors by WCAG, and their difference in OKLab as the color-blind see them."""

from itertools import combinations

import numpy as np
import pytest

from searchlight.search.reporting.html import theme

# Of linear RGB: Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision
# Deficiency, 2009, at full severity.
EYES = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
GRAPHICS, TEXT = 3.0, 4.5  # WCAG 2.1, AA
APART = 0.08  # in OKLab


def linear(color):
    channels = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    darker, lighter = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def oklab(rgb):
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
             [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
           [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return np.array(lab) @ np.cbrt(np.array(cones) @ np.clip(rgb, 0, 1))


@pytest.fixture(params=[theme.LIGHT, theme.DARK], ids=["light", "dark"])
def colors(request):
    return request.param


@pytest.mark.parametrize("ground", ["ground", "card"])
def test_text_and_hues_have_enough_contrast(colors, ground):
    for name in ("ink", "faint"):
        assert contrast(colors[name], colors[ground]) >= TEXT, name
    for name in theme.HUES:
        assert contrast(colors[name], colors[ground]) >= GRAPHICS, name


@pytest.mark.parametrize("eye", EYES)
def test_hues_differ_to_the_color_blind(colors, eye):
    seen = {name: oklab(np.array(EYES[eye]) @ linear(colors[name])) for name in theme.HUES}
    for one, other in combinations(theme.HUES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= APART, (one, other)


def test_outcomes_have_distinct_colors():
    assert len(set(theme.OUTCOME_COLORS.values())) == 5


def test_time_axis_has_few_and_round_times():
    for seconds in (0.5, 3, 59, 61, 170, 4000, 20_000, 10**6, 10**8):
        axis = theme.build_time_axis(seconds)
        assert len(axis["tickvals"]) <= theme.TICKS + 1
        assert axis["range"][1] >= seconds
    assert theme.build_time_axis(170)["ticktext"] == ["0:00", "0:30", "1:00", "1:30", "2:00", "2:30"]
