"""The order of programs by their expected free energy."""

import numpy as np
import pytest

from searchlight.models.arc.programs import FreeEnergy, Program, ProgramResult, rank

ANSWERS = {name: np.full((1, 1), color, dtype=np.uint8) for color, name in enumerate(["good", "unsure", "long"])}
RESULTS = [
    ProgramResult(Program((1, 2)), True, value=1.2, components=2, answers=(ANSWERS["long"],), ambiguity=(0.0,)),
    ProgramResult(Program((1,)), True, value=1.3, components=1, answers=(ANSWERS["unsure"],), ambiguity=(2.0,)),
    ProgramResult(Program((2,)), True, value=1.2, components=1, answers=(ANSWERS["good"],), ambiguity=(0.1,)),
]


@pytest.mark.parametrize(
    ("free_energy", "expected"),
    [
        (None, ["unsure", "good"]),  # of the largest value, then the shorter one
        (FreeEnergy(risk=0.0), ["unsure", "good"]),  # those that are shorter, as they were given
        (FreeEnergy(ambiguity=0.01), ["unsure", "long"]),
        (FreeEnergy(ambiguity=1.0), ["long", "good"]),
        (FreeEnergy(ambiguity=1.0, complexity=0.1), ["good", "long"]),
    ],
)
def test_each_term_of_the_free_energy_changes_the_order(free_energy, expected):
    ((first, second),) = rank(RESULTS, free_energy)
    assert [first.item(), second.item()] == [ANSWERS[name].item() for name in expected]


def test_free_energy_is_0_for_what_meets_all_surely():
    best = ProgramResult(Program(), True, value=1.5, answers=(None,), ambiguity=(0.0,))
    assert FreeEnergy(ambiguity=1.0).compute(best, 0) == pytest.approx(0)
