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

    def draw_below(self, bound: int) -> int:
        return int(self._random() * bound)

    def choose(self, words: Sequence[str]) -> str:
        return words[self.draw_below(len(words))]

    def draw_chance(self, probability: float) -> bool:
        return self._random() < probability


def generate_sentences(seed: int) -> Iterator[str]:
    """Yield sentences of a probabilistic context-free grammar, one per line, without end.

    Verbs agree in number with nouns that may be many words back (`the cat that the sailors see sleeps .`), which no
    n-gram can model.
    """
    draw = _Draws(seed)
    while True:
        yield f"{_draw_clause(draw, 0)} .\n"


def generate_equations(seed: int) -> Iterator[str]:
    """Yield correct lines of arithmetic without end: sums, differences, products, and sums with a bracket."""
    draw = _Draws(seed)
    while True:
        kind = draw.draw_below(4)
        a, b, c = draw.draw_below(1000), draw.draw_below(1000), draw.draw_below(100)
        if kind == 0:
            yield f"{a} + {b} = {a + b}\n"
        elif kind == 1:
            yield f"{a} - {b} = {a - b}\n"
        elif kind == 2:
            yield f"{a} * {c} = {a * c}\n"
        else:
            yield f"({a} + {b}) - {c} = {a + b - c}\n"


def _draw_clause(draw: _Draws, depth: int) -> str:
    number = draw.draw_below(2)
    return f"{_draw_noun_phrase(draw, number, depth)} {_draw_verb_phrase(draw, number, depth)}"


def _draw_noun_phrase(draw: _Draws, number: int, depth: int) -> str:
    words = [draw.choose(DETERMINERS[number])]
    if draw.draw_chance(0.4):
        words.append(draw.choose(ADJECTIVES))
    words.append(draw.choose(NOUNS[number]))
    if depth < DEEPEST and draw.draw_chance(0.3):
        words.append("that")
        if draw.draw_chance(0.5):
            words.append(_draw_verb_phrase(draw, number, depth + 1))
        else:
            other = draw.draw_below(2)
            words += [_draw_noun_phrase(draw, other, depth + 1), draw.choose(TRANSITIVE[other])]
    return " ".join(words)


def _draw_verb_phrase(draw: _Draws, number: int, depth: int) -> str:
    kind = draw.draw_below(5)
    if kind == 0 and depth < DEEPEST:
        return f"{draw.choose(SAYING[number])} that {_draw_clause(draw, depth + 1)}"
    if kind <= 2:
        adverb = f" {draw.choose(ADVERBS)}" if draw.draw_chance(0.5) else ""
        return draw.choose(INTRANSITIVE[number]) + adverb
    return f"{draw.choose(TRANSITIVE[number])} {_draw_noun_phrase(draw, draw.draw_below(2), depth + 1)}"
