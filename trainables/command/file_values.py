"""Replaces single values in YAML, JSON, TOML and Python files, and leaves all other text as it is."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from searchlight.trainables.command.python_literals import find_literals

_STRING = r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
_TOML_VALUE = re.compile(rf"(?:[\w-]|{_STRING})\s*=\s*(?P<value>{_STRING}|[^\s,#\]}}\"'\[{{]+)")
_MARK = "value-that-is-looked-for"
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")  # an anchor or a tag of a YAML value


@dataclass(frozen=True)
class Place:
    """A single value in a text: `text[start:end]`."""

    start: int
    end: int


def read_source(path: Path) -> str:
    """Return the text of a file with its line ends.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not UTF-8.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        return file.read()


def find_values(path: str, text: str) -> dict[str, list[Place]]:
    """Return the places of single values in the text of a file, by dotted key, for example "optimizer.lr".

    Items of lists have their index as key. A key may stand for several places, for example of a variable in Python.

    Raises:
        KeyError: The name of the file does not end like one of FORMATS.
        ValueError: The text is not in that format.
    """
    places: dict[str, list[Place]] = {}
    find, _ = FORMATS[PurePath(path).suffix.lower()]
    try:
        for key, start, end in find(text):
            places.setdefault(key, []).append(Place(start, end))
    except (yaml.YAMLError, RecursionError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} must be well-formed, but is not: {' '.join(str(error).split())}") from error
    return places


def replace_values(path: str, text: str, values: Mapping[str, Any]) -> str:
    """Return the text of a file with new values by dotted key.

    Raises:
        ValueError: A key has no place or several ones, or its value cannot be written there.
    """
    places = find_values(path, text)
    _, format_literal = FORMATS[PurePath(path).suffix.lower()]
    expected = _cut(text, places)
    changes = []
    for key, value in values.items():
        if len(places.get(key, [])) != 1:
            raise ValueError(f"{path} must have one value {key}, but has {len(places.get(key, []))}")
        [place] = places[key]
        literal = format_literal(value)
        expected[key] = [literal]
        changes.append((place.start, place.end, literal if place.start < place.end else f" {literal}"))
    changed = text
    for start, end, literal in sorted(changes, reverse=True):  # from the end, so that earlier places stay
        changed = changed[:start] + literal + changed[end:]
    if _cut(changed, find_values(path, changed)) != expected:
        raise ValueError(f"{path} cannot take {', '.join(values)}: another value of the file would change too")
    return changed


def _cut(text: str, places: Mapping[str, list[Place]]) -> dict[str, list[str]]:
    return {key: [text[place.start : place.end] for place in found] for key, found in places.items()}


def _find_yaml(text: str) -> Iterator[tuple[str, int, int]]:
    seen = set()  # an alias leads to a value that has a key already

    def walk(node: yaml.Node, key: str) -> Iterator[tuple[str, int, int]]:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                yield from walk(value, f"{key}.{name.value}" if key else str(name.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield from walk(item, f"{key}.{index}" if key else str(index))
        else:
            start, end = node.start_mark.index, node.end_mark.index
            start = _PROPERTIES.match(text, start, end).end()  # type: ignore[union-attr]  # it matches an empty text too
            yield key, start, start + len(text[start:end].rstrip())

    root = yaml.compose(text, yaml.SafeLoader)
    if root is not None:
        yield from walk(root, "")


def _find_json(text: str) -> Iterator[tuple[str, int, int]]:
    json.loads(text)  # a JSON text is YAML, but for tabs
    yield from _find_yaml(text.replace("\t", " "))


def _find_toml(text: str) -> Iterator[tuple[str, int, int]]:
    """Replace each candidate by a mark, and let the parser of TOML say which key has it."""
    tomllib.loads(text)
    for match in _TOML_VALUE.finditer(text):
        start, end = match.span("value")
        try:
            marked = tomllib.loads(f'{text[:start]}"{_MARK}"{text[end:]}')
        except tomllib.TOMLDecodeError:  # it is part of a longer value
            continue
        for key in _find_marked(marked, ""):
            yield key, start, end


def _find_marked(value: Any, key: str) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _find_marked(item, f"{key}.{name}" if key else str(name))
    if value == _MARK:
        yield key


def _format_yaml(value: Any) -> str:
    text: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.strip()[1:-1]  # without the brackets of the list


def _format_toml(value: Any) -> str:
    if value is None:
        raise ValueError("TOML has no null")
    return _format_json(value)


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


FORMATS: dict[str, tuple[Callable[[str], Iterator[tuple[str, int, int]]], Callable[[Any], str]]] = {
    ".yaml": (_find_yaml, _format_yaml),
    ".yml": (_find_yaml, _format_yaml),
    ".json": (_find_json, _format_json),
    ".toml": (_find_toml, _format_toml),
    ".py": (find_literals, repr),
}
