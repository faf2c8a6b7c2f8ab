"""Calls a function with the parameters of a trial: python -m searchlight.trainables.command.call train.py evaluate."""

import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from searchlight.trainables.command.hook.searchlight_hook import complain, params, send_metrics, to_number

CALL_FUNCTION = "searchlight.trainables.command.call"  # this module, which is __main__ where it is run
OBJECTIVES = "SEARCHLIGHT_OBJECTIVES"  # a variable: the names of the metrics that the search judges, as JSON
UNNAMED = "returned"  # the metric that a function returns, if the search judges none


def load_module(text: str) -> ModuleType:
    """Import a file or a module of the user. As in a script, the modules of a file are those beside it.

    A file beside an __init__.py is imported as a module of its package.
    """
    if not text.endswith(".py"):
        return importlib.import_module(text)
    path = Path(text).absolute()
    sys.path[0] = str(path.resolve().parent)
    root, name = path.parent, path.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    if "." in name:
        sys.path.insert(0, str(root))
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # else its classes could not be pickled
    spec.loader.exec_module(module)
    return module


def call_function(function: Callable[..., Any]) -> None:
    """Call a function with the parameters that it takes, and report what it returns.

    One that takes any gets no seed, which may be none of its own.
    """
    accepted = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    given = {name: value for name, value in params().items() if name in accepted or (takes_all and name != "seed")}
    report_result(function, function(**given))


def report_result(function: Callable[..., Any], result: Any) -> None:
    """Report what a function returned: a number, a number for each objective, or a dict of numbers.

    A metric that the function has reported itself keeps these values.
    """
    if result is not None:
        metrics = name_metrics(result)
        if not any(to_number(value) is not None for value in metrics.values()):
            rule = f"{function.__name__} must return a number, a number for each objective or a dict of numbers"
            complain(f"{rule}, but returned {result!r:.100}. It is left out.")
        send_metrics(f"what {function.__name__} returned", None, metrics, is_asked=True)


def name_metrics(result: Any, names: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return what a function returned by the names of metrics.

    >>> name_metrics(0.5, ["loss"]), name_metrics({"loss": 0.5, "epoch": 3})
    ({'loss': 0.5}, {'loss': 0.5, 'epoch': 3})

    Args:
        names: Those of the objectives. By default, the environment of a program has them.
    """
    if isinstance(result, Mapping):
        return result
    names = names or json.loads(os.environ.get(OBJECTIVES, "null")) or [UNNAMED]
    values = result if isinstance(result, tuple | list) else [result]
    return dict(zip(names, values, strict=False)) if len(values) <= len(names) else {}


if __name__ == "__main__":
    file, name = sys.argv[1:3]
    del sys.argv[2], sys.argv[0]  # as a script has it
    call_function(getattr(load_module(file), name))
