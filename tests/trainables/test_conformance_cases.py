"""Test that a test names each case of the conformance list.

A comment or an id of a test names the cases that it holds to: A5, B19, matrix 31, C24. Groups A to I are those of the
training step, with the group C of it written as "matrix 31", since C01 to C61 are the cases of its failures.
"""

import re
from pathlib import Path

from tests.conftest import ROOT

GROUPS = {
    "A": [*range(1, 12), *range(13, 17)],
    "B": [17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 29, 30],
    "matrix ": [31, *range(33, 41), 42],
    "D": [43, 44, 45, 46, 48],
    "E": [*range(49, 57), 58],
    "F": [59, 60, 61, 62, 64, 65, 66, 67],
    "G": [68, 69, 71, 72, 74, 75],
    "H": [76, 77, 78, 79, 80, 81, 84, 85, 86],
    "I": [87, 88],
}
FAILURES = [
    *range(1, 16), 17, 18, *range(20, 27), *range(28, 39), 40, 41, 42, 45, 46, 47, 48, 50, 51, *range(55, 62),
]  # fmt: skip
CASES = {f"{group}{number}" for group, numbers in GROUPS.items() for number in numbers}
CASES |= {f"C{number:02}" for number in FAILURES}


def find_named() -> set[str]:
    """The cases in the comments and ids of all tests."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            comment = line.partition("#")[2] + " ".join(re.findall(r'\bid="([^"]*)"', line))
            comment += " ".join(re.findall(r"ids=\[(.*?)\]", line))
            for numbers in re.findall(r"matrix (\d+(?:(?:,| and| to) \d+)*)", comment):
                found |= {f"matrix {number}" for number in re.findall(r"\d+", numbers)}
            found |= set(re.findall(r"\b[A-I]\d+\b", comment))
            for group, first, last in re.findall(r"\b([A-I])(\d+) to \1(\d+)\b", comment):
                found |= {f"{group}{number}" for number in range(int(first), int(last) + 1)}
    return found


def test_each_case_is_named_by_a_test():
    assert sorted(CASES - find_named()) == []
