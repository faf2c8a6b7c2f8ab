"""Reads metrics from the lines that a program prints."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from typing import Any

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.flatten import flatten

OUTPUT = "output"
JSON = "json"  # NAME=json
STEPS = ("step", "global_step", "iteration", "epoch")  # what names a step in JSON lines and CSV files, best first
# ECMA-48: colors, positions of the cursor, titles of windows
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
NUMBER = re.compile(r"\d")
LONGEST_SHOWN = 200  # characters of a line in a message
MOST_COMPARED = 1000  # lines, to find what an expression should have matched
# The times of a bar of tqdm: [00:01<00:05, 3.2it/s] or, without a total, [00:01, 3.2it/s].
CLOCK = re.compile(r"\[\d+:\d\d(?::\d\d)?(?:<|, *[\d.?]+[kKMGT]? ?[^\W\d]*/ ?[^\W\d])")
COUNT = re.compile(r"(\d[\d.]*[kKMGT]?)(?:/(\S+)| ?[^\W\d]*)$")  # left of them: 1/5, 1it or 1 batch
PERCENT = re.compile(r"\s*\d+%\|.*")  # and the bar itself
EXPONENT = re.compile(r"[eE][+-]?\d+")
# Numbers that an expression like [0-9.]+ does not match: negative ones, and those of a diverged training.
UNUSUAL = re.compile(
    r"""(?<![^\s=:,(\[{'"])(?:[+-](?:\d[\d.]*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)(?![\w-]))""",
    re.IGNORECASE,
)


class OutputPatterns:
    """Finds metrics in the lines of an output.

    Args:
        texts: NAME=REGEX, whose first group is the value; a group `step`, if any, is the step. Or NAME=json.

    Raises:
        ValueError: A text that is neither.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._patterns: list[tuple[str, re.Pattern[str], int]] = []
        self._in_json: set[str] = set()
        # What tqdm has drawn at last: the begin of the bar, its values and its count.
        self._drawn: tuple[str, list[Measurement], str] = ("", [], "")
        for text in texts:
            name, pattern = _parse_text(text)
            if pattern is None:
                self._in_json.add(name)
            else:
                self._patterns.append((name, pattern, _choose_group(pattern)))

    @property
    def names(self) -> set[str]:
        """Metrics that are expected in the output."""
        return {name for name, *_ in self._patterns} | self._in_json

    def find(self, line: str) -> Iterator[Measurement]:
        """Yield what a line says. Each part of a progress bar, which returns to the line's begin, is a line."""
        for part in re.split(r"[\r\n]+", line):
            text = ESCAPES.sub("", part)
            matched = [*self._match(text)]
            if not self._is_redrawn(text, matched):
                yield from matched
            if self._in_json and (start := text.find("{")) >= 0:
                found = parse_object(text[start:])
                if found is not None and found.metrics.keys() & self._in_json:
                    yield found

    def _is_redrawn(self, text: str, found: list[Measurement]) -> bool:
        """Return whether a bar of tqdm has only moved: `update` and `close` show the values of `set_postfix` again."""
        clock = CLOCK.search(text)
        if clock is None:
            return False
        left = text[: clock.start()].rstrip()
        counted = COUNT.search(left)
        done, total = counted.groups() if counted else ("", None)
        bar = PERCENT.sub("", left[: counted.start() if counted else None]).strip()
        (*before, at), self._drawn = self._drawn, (bar, found, done)
        # A new value is drawn at the count of the line before, as that of the epoch before was.
        return before == [bar, found] and (done != at or total in (None, done))

    def _match(self, text: str) -> Iterator[Measurement]:
        """Yield what the patterns find. The values of one step are one measurement."""
        found: dict[float | None, dict[str, float]] = {}
        texts = {text, *(UNUSUAL.sub(partial(_mask, begin), text) for begin in ("", "0."))}
        for name, pattern, group in self._patterns:
            matches = filter(None, map(pattern.search, texts))
            # The leftmost one: else an expression for digits would skip nan and read a later number of the line.
            match = min(matches, key=lambda each: (each.start(), each.start(group), -each.end(group)), default=None)
            if match and (value := parse_number(_get_whole_number(text, *match.span(group)))) is not None:
                step = parse_number(text[slice(*match.span("step"))]) if "step" in pattern.groupindex else None
                found.setdefault(step, {})[name] = value
        yield from (Measurement(OUTPUT, step, metrics) for step, metrics in found.items())


def explain_unread(text: str, output: str) -> str:
    r"""Return why --metric `text`, i.e. NAME=REGEX or NAME=json, has read nothing in an output.

    >>> explain_unread("loss=val_loss=([0-9.]+)", "epoch 1\nval loss 0.31\n")
    "--metric 'loss=val_loss=([0-9.]+)' matched none of the 2 lines. The nearest one is: val loss 0.31"
    """
    name, pattern = _parse_text(text)
    lines = [line for line in re.split(r"[\r\n]+", ESCAPES.sub("", output)) if line.strip()]
    option, count = f"--metric {shlex.quote(text)}", f"{len(lines)} line{'s' * (len(lines) != 1)}"
    if not lines:
        return f"{option} had nothing to read, since the program printed no line"
    matches = filter(None, map(pattern.search, lines)) if pattern else iter(())
    if pattern and (match := next(matches, None)):
        return f"{option} matched {match[_choose_group(pattern)]!r}, which is no number"
    told = f"{option} matched none of the {count}" if pattern else f"none of the {count} is JSON with a number {name}"
    wanted = SequenceMatcher(b=pattern.pattern if pattern else name, autojunk=False)
    nearest, most = "", 0
    for line in islice(filter(NUMBER.search, lines), MOST_COMPARED):
        wanted.set_seq1(line)
        if (alike := sum(block.size for block in wanted.get_matching_blocks())) > most:
            nearest, most = line, alike
    if nearest:
        return f"{told}. The nearest one is: {nearest.strip()[:LONGEST_SHOWN]}"
    return f"{told}, of which none has a number"


def parse_object(text: str, source: str = OUTPUT) -> Measurement | None:
    """Return the numbers of a JSON object, nested ones as "val/loss", or None if `text` is no object."""
    try:
        content = json.loads(text)
        return build_measurement(flatten(content, "/"), source) if isinstance(content, dict) else None
    except (ValueError, RecursionError):
        return None


def build_measurement(values: Mapping[str, Any], source: str) -> Measurement:
    """Build a measurement of what is a number. The first of STEPS that is there has its step."""
    numbers = {name: number for name, value in values.items() if (number := parse_number(value)) is not None}
    steps = [name for name in STEPS if name in numbers]
    return Measurement(source, numbers.pop(steps[0]) if steps else None, numbers)


def parse_number(value: Any) -> float | None:
    """Return a number or the text of one, e.g. "0.25", "1e-3," or "nan", as a float. Return None for anything else."""
    if isinstance(value, str):
        value = value.strip().rstrip(",;:%").removesuffix(".")
    elif not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _mask(begin: str, number: re.Match[str]) -> str:
    """Return `begin` and digits in the place of a number, so that an expression for digits matches all of it."""
    return begin.ljust(len(number[0]), "0")[: len(number[0])]


def _get_whole_number(text: str, start: int, end: int) -> str:
    """Return what is matched, with its exponent: [0-9.]+ would read 1.5e-05 as 1.5."""
    exponent = EXPONENT.match(text, end) if text[start:end][-1:].isdigit() else None
    return text[start : exponent.end() if exponent else end]


def _parse_text(text: str) -> tuple[str, re.Pattern[str] | None]:
    name, separator, pattern = text.partition("=")
    if not name or not separator or not pattern:
        raise ValueError(f"--metric must be like NAME=REGEX or NAME=json, but got {text!r}.")
    if pattern == JSON:
        return name, None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"--metric must have a regular expression, but got {text!r}: {error}.") from None
    if not compiled.groups or ([*compiled.groupindex] == ["step"] and compiled.groups == 1):
        raise ValueError(
            f"--metric must have parentheses around the value, like {name}={name}: ([0-9.]+), but got {text!r}."
        )
    return name, compiled


def _choose_group(pattern: re.Pattern[str]) -> int:
    """Return the number of the group that has the value: `value`, or the first one that is not `step`."""
    step = pattern.groupindex.get("step")
    return pattern.groupindex.get("value") or next(group for group in range(1, pattern.groups + 1) if group != step)
