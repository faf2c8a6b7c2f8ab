"""The options of samplers."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator

from searchlight.search.formatting import join_words
from searchlight.search.option import Options, option, wrap_in_list
from searchlight.search.samplers.factory import SAMPLERS, TAKING_BELIEFS
from searchlight.search.samplers.own import is_reference
from searchlight.trainables.trust import Trust

_sampler = partial(option, "Sampler")


def parse_sampler(value: Any) -> Any:
    """Return the name of a sampler, or the reference to one of the user, unchanged.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, str) and (value in SAMPLERS or is_reference(value)):
        return value
    names = join_words([*SAMPLERS, "like my_samplers.py:make_sampler"], "or")
    raise ValueError(f"must be {names}, but got {value!r}")


TAKING = {"trust": ["mixture"], "believe": TAKING_BELIEFS}  # the samplers that take these options


def list_ignored(sampler: str) -> list[str]:
    """Return the keys of the options that a sampler does not take."""
    return [key for key, samplers in TAKING.items() if sampler not in samplers]


class SamplerOptions(Options):
    """How the parameters of trials are proposed."""

    sampler: Annotated[str, BeforeValidator(parse_sampler)] = _sampler(
        "tpe",
        "NAME",
        f"Algorithm that proposes parameters: {', '.join(SAMPLERS)}, or FILE.py:function or package.module:function "
        "that takes a seed and gives a sampler of Optuna.",
        resumable=True,
    )
    seed: int = _sampler(0, "N", "Random seed of the sampler and of trials without another seed.", ge=0, lt=2**31)
    warm_start: Annotated[list[str], BeforeValidator(wrap_in_list)] = _sampler(
        [], "SEARCH", "Learn from an earlier search, given by its name, its folder or mlflow:EXPERIMENT."
    )
    trust: dict[str, Trust] = _sampler(
        {},
        "NAME=LEVEL",
        "How near to its default --sampler mixture expects good values of a parameter: none, low, medium or high. "
        "Default: what the task declares, else medium.",
    )
    believe: dict[str, Any] = _sampler(
        {},
        "NAME=VALUE,...",
        "Propose half of the first values near these, as long as results agree. For --sampler mixture or tpe.",
    )

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        for key in (key for key in list_ignored(self.sampler) if getattr(self, key)):
            yield f"--{key} must come with --sampler {join_words(TAKING[key], 'or')}, but got {self.sampler}."
