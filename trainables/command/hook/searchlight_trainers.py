"""Callbacks of trainers: they say the metrics of evaluations, and let the trainer stop in order.

A trainer that is asked to stop leaves its loop, so that the program still saves its model. All ranks must leave at the
same step. Therefore several ranks decide together where they meet anyway, i.e. after an evaluation or a log.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import searchlight_hook as hook


def build_hugging_face_callback() -> Any:
    """Build a callback for Trainer of transformers."""
    base: Any = import_module("transformers.trainer_callback").TrainerCallback

    class SearchlightCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.is_training = False
            self.said: dict[str, Any] = {}  # an evaluation is logged as well

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.is_training = True
            hook.should_stop()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.is_training = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if args.world_size == 1 and hook.should_stop():
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self._handle(args, state, control, logs)

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            self._handle(args, state, control, metrics)

        def _handle(self, args: Any, state: Any, control: Any, metrics: Any) -> None:
            new = {name: value for name, value in (metrics or {}).items() if self.said.get(name) != value}
            self.said = dict(metrics or {})
            if new and (state.global_step > 0 or not self.is_training):  # before its training, the model is no result
                hook.send_metrics("Hugging Face Trainer", state.global_step, metrics)
            if self.is_training and agree_to_stop(args):
                control.should_training_stop = True

    return SearchlightCallback()


def agree_to_stop(args: Any) -> bool:
    """Return whether the search has told rank 0 to stop. All ranks call this at the same step."""
    if args.world_size == 1:
        return bool(hook.should_stop())
    torch = sys.modules["torch"]
    flag = torch.tensor(int(hook.should_stop()), device=args.device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag.item())


def build_lightning_callback(package: str) -> Any:
    """Build a callback for Trainer of Lightning.

    Args:
        package: "lightning.pytorch" or "pytorch_lightning".
    """
    base: Any = import_module(f"{package}.callbacks").Callback

    class SearchlightCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.known: dict[str, Any] = {}  # the tensors that were said
            self.before: dict[str, Any] = {}  # those of an evaluation's begin

        def __reduce__(self) -> Any:  # for strategies that spawn processes
            return build_lightning_callback, (package,)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            hook.should_stop()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.world_size == 1 and hook.should_stop():
                trainer.should_stop = True

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self.before = dict(trainer.callback_metrics)

        on_test_start = on_validation_start

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self._handle(trainer, self.before)

        on_test_end = on_validation_end

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self._handle(trainer, self.known)

        def _handle(self, trainer: Any, before: Any) -> None:
            """Say what is new. The values of other steps are still there, as the same objects as `before`."""
            metrics = dict(trainer.callback_metrics)  # on all ranks, since it may be reduced now
            new = {name: value for name, value in metrics.items() if before.get(name) is not value}
            self.known.update(new)
            if trainer.sanity_checking:
                return
            hook.send_metrics("Lightning", trainer.global_step, new)
            if trainer.state.fn == "fit":
                stop = hook.should_stop()
                if trainer.world_size > 1:
                    stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
                if stop:
                    trainer.should_stop = True

    return SearchlightCallback()


def build_keras_callback() -> Any:
    """Build a callback for `Model.fit` of Keras."""
    base: Any = import_module("keras").callbacks.Callback

    class SearchlightCallback(base):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            hook.should_stop()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if hook.should_stop():
                self.model.stop_training = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            hook.send_metrics("Keras", epoch + 1, logs or {})

    return SearchlightCallback()
