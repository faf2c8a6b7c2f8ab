"""Hears what a program gives to its loggers and trainers. They are patched when the program imports them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

import searchlight_hook as hook
from searchlight_trainers import build_hugging_face_callback, build_keras_callback, build_lightning_callback

ASK = signal.SIGURG  # asks for what a process has imported; processes without a handler ignore it
FOLDER, TRIAL = "SEARCHLIGHT_FOLDER", "SEARCHLIGHT_TRIAL_DIR"  # of the user, if the trial has copies of its code
_variables: dict[str, dict[str, str | None]] = {}  # by package, those that had changed when its import began
_inside = threading.local()  # a logger that calls another one is heard once


def install() -> None:
    """Patch the libraries that the program has imported, and those that it will import."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    for name, patch in PATCHES.items():
        if name in sys.modules:
            attempt(patch, sys.modules[name])
    sys.meta_path.insert(0, Finder(dict(os.environ)))
    sys.meta_path.append(PublicModule())
    hook.get_connection().greeting = describe_process
    atexit.register(say_modules)
    attempt(answer)
    print_whole_lines()


def print_whole_lines() -> None:
    """Let a rank print whole lines, as to a terminal. Without a buffer, `print` writes its arguments one by one.

    All ranks print to one pipe, where the parts of their lines would mix. A user who has asked for no buffer gets none.
    """
    is_unbuffered = os.environ.get("PYTHONUNBUFFERED") == hook.UNBUFFERED and "-u" not in getattr(sys, "orig_argv", ())
    is_rank = any(os.environ.get(name) for name in hook.RANKS)
    if is_unbuffered and is_rank and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def attempt(action: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call `action`. The program goes on if it fails, e.g. because a library has changed."""
    try:
        action(*arguments, **options)
    except Exception as error:
        hook.complain(f"some metrics are not heard: {error!r}.")


def describe_process() -> dict[str, Any]:
    """Return the modules of site-packages that this process has imported, and the variables that they found changed.

    Those come first whose import ended first.
    """
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(origin, str) and ("site-packages" in origin or "dist-packages" in origin):
            names.append(name)
    packages = {name.partition(".")[0] for name in names}
    return {"modules": names, "variables": {name: _variables[name] for name in packages & _variables.keys()}}


def say_modules() -> None:
    """Say at the end of the process what it has imported."""
    attempt(send_modules)


def send_modules() -> None:
    """Send what this process has imported, if it speaks for the program and is heard."""
    if hook.is_main_process() and os.path.exists(os.environ.get(hook.SOCKET, "")):
        hook.get_connection().send(describe_process())


def answer() -> None:
    """Say what this process has imported when the search asks. It may be killed, and then it has no end to say it."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(ASK) == signal.SIG_DFL:
        signal.signal(ASK, handle_ask)
        signal.siginterrupt(ASK, False)  # C code may not expect that a call is interrupted


def handle_ask(*_: Any) -> None:
    """Say what this process has imported, if it has said nothing yet."""
    if not hook.get_connection().is_used:
        with contextlib.suppress(Exception):  # this thread may be in the middle of the import of what is needed
            send_modules()


def hear(owner: Any, name: str, source: str, extract: Callable[..., tuple[Any, Mapping[str, Any]]]) -> None:
    """Send what a method of a logger gets. `extract` has its parameters and returns a step and metrics."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **options: Any) -> Any:
        if getattr(_inside, "is_set", False):
            return inner(*args, **options)
        _inside.is_set = True
        try:
            result = inner(*args, **options)
        finally:
            _inside.is_set = False
        attempt(lambda: hook.send_metrics(source, *extract(*args, **options)))
        return result

    setattr(owner, name, outer)


def add_callback(owner: Any, add: Callable[[Any], None]) -> None:
    """Let `add` give a callback to each new trainer."""
    inner = owner.__init__

    @functools.wraps(inner)
    def outer(self: Any, *args: Any, **options: Any) -> None:
        inner(self, *args, **options)
        attempt(add, self)

    owner.__init__ = outer


def patch_tensorboard(module: Any) -> None:
    def extract_scalar(self: Any, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> Any:
        return global_step, {tag: scalar_value}

    def extract_scalars(
        self: Any, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *_: Any, **__: Any
    ) -> Any:
        return global_step, {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}

    hear(module.SummaryWriter, "add_scalar", "TensorBoard", extract_scalar)
    hear(module.SummaryWriter, "add_scalars", "TensorBoard", extract_scalars)


def patch_wandb(module: Any) -> None:
    def extract(self: Any, data: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Any:
        return step, dict(flatten(data))

    hear(module.Run, "log", "W&B", extract)


def flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested metrics with the names that W&B gives them, e.g. "val.loss"."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def patch_mlflow(module: Any) -> None:
    def extract_metric(key: str, value: Any, step: Any = None, *_: Any, **__: Any) -> Any:
        return step, {key: value}

    def extract_metrics(metrics: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Any:
        return step, metrics

    def extract_client_metric(
        self: Any, run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None, *_: Any, **__: Any
    ) -> Any:
        return step, {key: value}

    def extract_client_batch(self: Any, run_id: str, metrics: Any = (), *_: Any, **__: Any) -> Any:
        return next((metric.step for metric in metrics), None), {metric.key: metric.value for metric in metrics}

    hear(module, "log_metric", "MLflow", extract_metric)
    hear(module, "log_metrics", "MLflow", extract_metrics)
    hear(module.MlflowClient, "log_metric", "MLflow", extract_client_metric)
    hear(module.MlflowClient, "log_batch", "MLflow", extract_client_batch)


def patch_accelerate(module: Any) -> None:
    def extract(self: Any, values: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Any:
        return step, values

    hear(module.Accelerator, "log", "Accelerate", extract)


def patch_hugging_face(module: Any) -> None:
    add_callback(module.Trainer, lambda trainer: trainer.add_callback(build_hugging_face_callback()))


def patch_lightning(module: Any) -> None:
    package = module.__name__[: -len(".trainer.trainer")]
    add_callback(module.Trainer, lambda trainer: trainer.callbacks.append(build_lightning_callback(package)))


def patch_keras(module: Any) -> None:
    inner = module.Model.fit

    @functools.wraps(inner)
    def fit(self: Any, *args: Any, **options: Any) -> Any:
        given = options.get("callbacks")
        if isinstance(given, module.callbacks.CallbackList):
            given.append(build_keras_callback())
        elif len(args) < 6:  # x, y, batch_size, epochs, verbose, callbacks
            others = [] if given is None else given if isinstance(given, (list, tuple)) else [given]
            options["callbacks"] = [*others, build_keras_callback()]
        return inner(self, *args, **options)

    module.Model.fit = fit


PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.tensorboard.writer": patch_tensorboard,
    "tensorboardX.writer": patch_tensorboard,
    "wandb": patch_wandb,
    "mlflow": patch_mlflow,
    "accelerate.accelerator": patch_accelerate,
    "transformers.trainer": patch_hugging_face,
    "lightning.pytorch.trainer.trainer": patch_lightning,
    "pytorch_lightning.trainer.trainer": patch_lightning,
    "keras": patch_keras,
}


class Finder:
    """Finds modules of PATCHES as Python does, and patches them after their import.

    Args:
        environment: The variables when the program began.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of PATCHES, or None. Note the variables that have changed so far."""
        if path is None:
            now = dict(os.environ)
            names = [each for each in {**self.environment, **now} if self.environment.get(each) != now.get(each)]
            if names:
                _variables.setdefault(name, {each: now.get(each) for each in names})
        folder = os.environ.get(FOLDER)
        if name not in PATCHES and not folder:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)  # old finders have none
            spec = find_spec and find_spec(name, path, target)
            if spec is not None:
                spec = find_copy(spec, folder) if folder else spec
                if name in PATCHES:
                    attempt(patch_after_import, spec, PATCHES[name])
                return spec
        return None


def find_copy(spec: ModuleSpec, folder: str) -> ModuleSpec:
    """Return the spec of the trial's copy of a module, or `spec` if it has none.

    An installation in editable mode or an absolute PYTHONPATH leads to the user's folder, where no file has values.
    """
    origin, folder, trial = map(os.path.realpath, (spec.origin or "", folder, os.environ.get(TRIAL, "")))
    if not origin.endswith(".py") or not origin.startswith(folder + os.sep) or origin.startswith(trial + os.sep):
        return spec
    copy = os.path.join(trial, os.path.relpath(origin, folder))
    if not os.path.isfile(copy) or os.path.samefile(copy, origin):
        return spec
    from importlib.util import spec_from_file_location

    locations = None if spec.submodule_search_locations is None else [os.path.dirname(copy)]
    return spec_from_file_location(spec.name, copy, submodule_search_locations=locations) or spec


def patch_after_import(spec: ModuleSpec, patch: Callable[[Any], None]) -> None:
    """Let the loader of `spec` call `patch` with the module that it has executed."""
    loader: Any = spec.loader
    inner = loader.exec_module

    def exec_module(module: Any) -> None:
        loader.__dict__.pop("exec_module", None)
        inner(module)
        attempt(patch, module)

    loader.exec_module = exec_module


class PublicModule:
    """Provides `import searchlight` to programs whose Python has no such package."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of `searchlight`, which no other finder has found."""
        return ModuleSpec(name, self) if name == "searchlight" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        """Give the module what a program says to a search."""
        module.report, module.params, module.should_stop = hook.report, hook.params, hook.should_stop
