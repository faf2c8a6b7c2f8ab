"""Reproducible endless text: sentences of a small grammar, and lines of arithmetic."""

from collections.abc import Iterator, Sequence

import numpy as np

DEEPEST = 3  # largest depth of nested clauses

DETERMINERS = (("the", "a", "every", "this"), ("the", "some", "many", "these"))
ADJECTIVES = ("old", "young", "red", "quiet", "tall", "clever", "lazy", "bright")
NOUNS = (
    ("cat", "sailor", "bird", "teacher", "child", "robot", "farmer", "river"),
    ("cats", "sailors", "birds", "teachers", "children", "robots", "farmers", "rivers"),
)
TRANSITIVE = (
    ("sees", "follows", "likes", "finds", "hears", "paints"),
    ("see", "follow", "like", "find", "hear", "paint"),
)
INTRANSITIVE = (("sleeps", "sings", "waits", "falls"), ("sleep", "sing", "wait", "fall"))
SAYING = (("says", "thinks", "knows"), ("say", "think", "know"))
ADVERBS = ("slowly", "today", "again", "often", "alone")


class _Draws:
    """Draws numbers in 0..1 with the only method of NumPy's generators that is stable across versions."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed)).random

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def one_of(self, words: Sequence[str]) -> str:
        return words[self.below(len(words))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability


def sentences(seed: int) -> Iterator[str]:
    """Yield sentences of a probabilistic context-free grammar, one per line, without end.

    Verbs agree in number with nouns that may be many words back (`the cat that the sailors see sleeps .`), which no
    n-gram can model.
    """
    draw = _Draws(seed)
    while True:
        yield f"{_clause(draw, 0)} .\n"


def equations(seed: int) -> Iterator[str]:
    """Yield correct lines of arithmetic without end: sums, differences, products, and sums with a bracket."""
    draw = _Draws(seed)
    while True:
        kind = draw.below(4)
        a, b, c = draw.below(1000), draw.below(1000), draw.below(100)
        if kind == 0:
            yield f"{a} + {b} = {a + b}\n"
        elif kind == 1:
            yield f"{a} - {b} = {a - b}\n"
        elif kind == 2:
            yield f"{a} * {c} = {a * c}\n"
        else:
            yield f"({a} + {b}) - {c} = {a + b - c}\n"


def _clause(draw: _Draws, depth: int) -> str:
    number = draw.below(2)
    return f"{_noun_phrase(draw, number, depth)} {_verb_phrase(draw, number, depth)}"


def _noun_phrase(draw: _Draws, number: int, depth: int) -> str:
    words = [draw.one_of(DETERMINERS[number])]
    if draw.chance(0.4):
        words.append(draw.one_of(ADJECTIVES))
    words.append(draw.one_of(NOUNS[number]))
    if depth < DEEPEST and draw.chance(0.3):
        words.append("that")
        if draw.chance(0.5):
            words.append(_verb_phrase(draw, number, depth + 1))
        else:
            other = draw.below(2)
            words += [_noun_phrase(draw, other, depth + 1), draw.one_of(TRANSITIVE[other])]
    return " ".join(words)


def _verb_phrase(draw: _Draws, number: int, depth: int) -> str:
    kind = draw.below(5)
    if kind == 0 and depth < DEEPEST:
        return f"{draw.one_of(SAYING[number])} that {_clause(draw, depth + 1)}"
    if kind <= 2:
        adverb = f" {draw.one_of(ADVERBS)}" if draw.chance(0.5) else ""
        return draw.one_of(INTRANSITIVE[number]) + adverb
    return f"{draw.one_of(TRANSITIVE[number])} {_noun_phrase(draw, draw.below(2), depth + 1)}"
