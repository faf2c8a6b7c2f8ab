"""The peer trainers of the benchmarks, configured to do nothing but train.

All of a peer's imports are here, so that a machine without them gets one clear line instead of a traceback.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

try:
    import accelerate
    import lightning
    import torch
    import transformers
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from lightning.fabric import Fabric
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, default_data_collator
except ModuleNotFoundError as error:
    sys.exit(f'{error.name} is missing, and this benchmark compares with it: pip install ".[bench]"')

__all__ = [
    "Fabric",
    "TrainerCallback",
    "VERSIONS",
    "create_accelerator",
    "default_data_collator",
    "create_hf_trainer",
    "lightning",
]

VERSIONS = ", ".join(f"{peer.__name__} {peer.__version__}" for peer in (torch, accelerate, lightning, transformers))

warnings.filterwarnings("ignore")
transformers.utils.logging.set_verbosity_error()
for name in ("lightning.pytorch", "lightning.fabric", "accelerate"):
    logging.getLogger(name).setLevel(logging.ERROR)


def create_accelerator(cpu: bool = True, **options: Any) -> Accelerator:
    """Create an Accelerator after a reset of the class, which accepts one precision per process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=cpu, **options)


def create_hf_trainer(
    model: torch.nn.Module,
    data: Any,
    optimizer: torch.optim.Optimizer,
    callbacks: Sequence[TrainerCallback] = (),
    **options: Any,
) -> Trainer:
    """Create a Trainer that does not log, save, evaluate or clip unless `options` say so."""
    off: dict[str, Any] = {
        "disable_tqdm": True,
        "eval_strategy": "no",
        "logging_strategy": "no",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "remove_unused_columns": False,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
    }
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=tempfile.gettempdir(), **{**off, **options}),
        data_collator=default_data_collator,
        train_dataset=data,
        callbacks=list(callbacks),
        optimizers=(optimizer, None),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
