"""Installs the hook when Python starts, and then runs the user's own sitecustomize, which this file hides."""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder

FOLDER = os.path.dirname(os.path.abspath(__file__))


def install_hook() -> None:
    """Install the hook in a program of a search."""
    if os.environ.get("SEARCHLIGHT_SOCKET"):
        try:
            import_module("searchlight_patches").install()
        except Exception as error:  # whatever is wrong here, the program must run
            print(f"searchlight: metrics are not heard: {error!r}", file=sys.stderr)


def run_next_sitecustomize() -> None:
    """Run the sitecustomize that Python would have found without this folder."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = import_module("importlib.util").module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


install_hook()
run_next_sitecustomize()
