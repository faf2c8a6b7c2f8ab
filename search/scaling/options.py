"""The options of a search over sizes."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator

from searchlight.search.option import Options, option, wrap_in_list
from searchlight.search.scaling.size import UNNAMED, Size, get_measures, measure_size, name_size

_sizes = partial(option, "Sizes")


def parse_sizes(value: Any) -> Any:
    """Return sizes by name, from a mapping of a YAML file, or from texts such as "width=64,128 depth=2,4".

    Numbers alone, such as "64,128", are of the parameter `UNNAMED`.

    Raises:
        ValueError: They are neither.
    """
    if isinstance(value, Mapping):
        return value
    given = wrap_in_list(value)
    if all(isinstance(each, Mapping) for each in given):
        return {name_size(size): size for size in given}
    columns: dict[str, list[str]] = {}
    for word in " ".join(map(str, given)).split():
        name, equals, values = word.rpartition("=")
        if name in columns or not (name if equals else values[0].isdigit()):
            raise ValueError(f"must be like width=64,128,256, but got {word!r}")
        columns[name] = values.split(",")
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{len(values)} of {name}" for name, values in columns.items())
        raise ValueError(f"must have as many values of each parameter, but got {counts}")
    sizes = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {name_size(size): size for size in sizes}


def parse_target(value: Any) -> Any:
    """Return the size of a mapping, or of texts such as "width=1024 depth=8".

    Raises:
        ValueError: It is more than one size.
    """
    if isinstance(value, Mapping):
        return value
    sizes = parse_sizes(value)
    if len(sizes) > 1:
        raise ValueError(f"must be one size, but got {len(sizes)}")
    return next(iter(sizes.values()), {})


def parse_exponents(value: Any) -> Any:
    """Return exponents by "parameter/size", from a mapping or from texts such as "lr/width=-1".

    Raises:
        ValueError: A key is not of that form.
    """
    pairs = value if isinstance(value, Mapping) else dict(str(text).partition("=")[::2] for text in wrap_in_list(value))
    if odd := next((key for key in pairs if str(key).count("/") != 1), None):
        raise ValueError(f"must be like lr/width=-1, but got {odd!r}")
    return pairs


class ScalingOptions(Options):
    """At which sizes to search, and for which size.

    >>> options = ScalingOptions(sizes="width=64,128,256", target="width=1024")
    >>> options.sizes["width128"], options.target
    ({'width': 128.0}, {'width': 1024.0})
    >>> [*ScalingOptions(target="width=1024").find_problems()]
    ['--target must come with --sizes, but got none.']
    """

    sizes: Annotated[dict[str, Size], BeforeValidator(parse_sizes)] = _sizes(
        {},
        "NAME=V1,V2,...",
        "Search at each of these sizes, from small to large, e.g. 'width=64,128,256 depth=2,2,4'. workers, "
        "cpus_per_worker and gpus_per_worker may differ, too. 64,128,256 alone is of the size that the task declares.",
    )
    target: Annotated[Size, BeforeValidator(parse_target)] = _sizes(
        {}, "NAME=VALUE", "Predict the best values for this size, e.g. width=1024. Default: the largest of --sizes."
    )
    exponent: Annotated[dict[str, float], BeforeValidator(parse_exponents)] = _sizes(
        {},
        "NAME/SIZE=EXPONENT",
        "Begin with a law that the trials may overrule, e.g. lr/width=-1: the best lr falls with the width.",
    )

    @property
    def exponents(self) -> dict[str, dict[str, float]]:
        """The starting law by parameter and size."""
        found: dict[str, dict[str, float]] = {}
        for key, value in self.exponent.items():
            parameter, _, size = key.partition("/")
            found.setdefault(parameter, {})[size] = value
        return found

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        if not self.sizes:
            given = {"--target": self.target, "--exponent": self.exponent}
            yield from (f"{name} must come with --sizes, but got none." for name, value in given.items() if value)
            return
        if any(UNNAMED in size for size in (*self.sizes.values(), self.target)):
            return  # the task says which parameter it is: see `name_sizes`
        sizes = {name: get_measures(size) for name, size in self.sizes.items()}
        names = [*next(iter(sizes.values()))]
        if len(sizes) < 2:
            yield f"--sizes must be at least two, but got {len(sizes)}."
        for size in (*sizes.values(), *([get_measures(self.target)] if self.target else [])):
            if {*size} != {*names} or not size:
                yield f"--sizes and --target must have the same parameters, but got {names} and {[*size]}."
            elif not all(value > 0 for value in size.values()):
                yield f"--sizes must be above 0, but got {size}."
        if any(later <= earlier for earlier, later in pairwise(map(measure_size, sizes.values()))):
            yield f"--sizes must go from small to large, but got {', '.join(sizes)}."
        for key in self.exponent:
            if (size_name := key.partition("/")[2]) not in names:
                yield f"--exponent must name a parameter of --sizes, {', '.join(names)}, but got {size_name!r}."
