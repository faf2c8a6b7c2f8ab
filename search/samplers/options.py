"""The options of samplers."""

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

from searchlight.search.formatting import join_words
from searchlight.search.option import Choice, Options, option, wrap_in_list
from searchlight.search.samplers.factory import SAMPLERS

_sampler = partial(option, "Sampler")


class SamplerOptions(Options):
    """How the parameters of trials are proposed."""

    sampler: Annotated[str, Choice(SAMPLERS)] = _sampler(
        "tpe", "NAME", f"Algorithm that proposes parameters: {join_words(list(SAMPLERS), 'or')}.", resumable=True
    )
    seed: int = _sampler(0, "N", "Random seed of the sampler and of trials without another seed.", ge=0, lt=2**31)
    warm_start: Annotated[list[str], BeforeValidator(wrap_in_list)] = _sampler(
        [], "SEARCH", "Learn from an earlier search, given by its name, its folder or mlflow:EXPERIMENT."
    )
