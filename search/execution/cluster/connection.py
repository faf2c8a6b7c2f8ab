"""The Ray that a search runs on: a cluster of its own on this machine, or the one that it was submitted to."""

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import ray

from search.execution.cluster.local_machine import count_available_cpus, uses_existing_cluster

PACKAGES = ("search", "trainables", "models")  # travel to a cluster, so that its nodes run this very version
OBJECT_STORE_BYTES = 256 * 2**20  # what passes through it is reports; Ray would take a third of the memory


@contextmanager
def ray_session(modules: Sequence[Path], root: Path, folder: Path) -> Iterator[None]:
    """Ray, started here unless RAY_ADDRESS names a cluster, and left again afterwards.

    Args:
        modules: Files and packages that the workers import besides this project.
        root: The folder that `search`, `trainables` and `models` are in.
        folder: Of the search. It keeps a copy of `modules`, from which workers on this machine import, since the user
            may go on to edit his; and a submitted job's own go away with it.
    """
    code = folder / "code"
    if modules and not code.exists():  # else the search was taken up
        _copy_modules(modules, code)
    ray_here = _join_cluster(modules, root) if uses_existing_cluster() else _start_local_cluster(root, code)
    # Around Ray: its threads print until it has shut down.
    with redirect_stdout(_RayOutputFilter(sys.stderr)), ray_here:
        yield


@contextmanager
def _join_cluster(modules: Sequence[Path], root: Path) -> Iterator[None]:
    paths = [root / package for package in PACKAGES] + list(modules)
    runtime_env = {"py_modules": [str(path) for path in paths]}
    _init_ray(runtime_env=runtime_env)
    try:
        yield
    finally:
        shut_down()


@contextmanager
def _start_local_cluster(root: Path, code: Path) -> Iterator[None]:
    temporary = Path(tempfile.mkdtemp(prefix="searchlight-", dir=os.environ.get("RAY_TMPDIR", "/tmp")))
    with _remove_at_exit(temporary):
        # Through the environment of this process: with one in `runtime_env`, no worker process can be started ahead.
        paths = [str(code), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        with _set_environment(PYTHONPATH=os.pathsep.join(paths)):
            _init_ray(
                address="local",
                num_cpus=count_available_cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(temporary),
            )
        try:
            yield
        finally:
            shut_down()


def _init_ray(**options: Any) -> None:
    """Ray, without the handlers of signals that it puts over those of the search: its own print a stack first."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            signal.signal(number, handler)


def shut_down() -> None:
    """Leave Ray, which ends this process at once if one of its references is given back meanwhile.

    Any thread may do that which happens to collect garbage, such as the one that imports MLflow.
    """
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        gc.enable()


def _copy_modules(modules: Sequence[Path], code: Path) -> None:
    """All of them or nothing: a search that was killed here must not be taken up with a part of its task."""
    unfinished = code.with_name(f"{code.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for path in modules:
        if path.is_dir():
            shutil.copytree(path, unfinished / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, unfinished)
    unfinished.rename(code)


@contextmanager
def _remove_at_exit(folder: Path) -> Iterator[None]:
    """Removes `folder` in the end, also if this process is killed: another one waits for that."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("session_cleanup.py")), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True) as janitor:
        try:
            yield
        finally:
            janitor.communicate("ended")


@contextmanager
def _set_environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _RayOutputFilter:
    """Standard output while Ray runs: Ray prints its own warnings there, between lines meant for other programs.

    Dropped are the one about the number of worker processes, since a gang has six by design, on however few cores, and
    the one about a worker that died, since the gang says in one line what became of its trial.
    """

    DROPPED = ("worker processes have been started", "A worker died or was killed while executing")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        ends_dropped = self._dropped and text == "\n"
        self._dropped = any(dropped in text for dropped in self.DROPPED)
        if "(raylet)" in text and "\n" in text.rstrip():
            text = text.partition("\n")[0]  # without the log of a node that was lost
        if not self._dropped and not ends_dropped:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
