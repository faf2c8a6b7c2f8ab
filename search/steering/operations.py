"""What a command may do. The command line, Python, the pages and the checks follow from this table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Scalar = str | float | int | bool


@dataclass(frozen=True)
class Argument:
    """An argument of a command.

    Attributes:
        type: As JSON has it. One that may be None may be left out.
        help: For the help of its option.
    """

    type: Any
    help: str = ""


@dataclass(frozen=True)
class Operation:
    """What a command does.

    Attributes:
        help: For the help of the command.
        arguments: By name. The first one is given without its name, but for the optional ones.
        undo: Whether `undo` takes it back.
        hint: An example of the text that stands for the first argument, or "" if the command needs none.
    """

    help: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    undo: bool = False
    hint: str = ""


TRIALS = {"trials": Argument(list[int])}
OPERATIONS: Mapping[str, Operation] = {
    "stop": Operation("End TRIALS at their next window, as pruned.", TRIALS, hint="trials, e.g. 3 7"),
    "keep": Operation(
        "Train TRIALS to their full budget, whatever the scheduler says.", TRIALS, undo=True, hint="trials, e.g. 3 7"
    ),
    "extend": Operation(
        "Train TRIALS for more epochs than planned, whatever the scheduler says.",
        TRIALS | {"epochs": Argument(int, "How many more.")},
    ),
    "try": Operation(
        "Try a point next, such as lr=1e-3,precision=bf16. Other parameters have the task's defaults.",
        {"point": Argument(dict[str, Scalar]), "full": Argument(bool | None, "Train it to its full budget.")},
        hint="lr=0.001, precision=bf16",
    ),
    "believe": Operation(
        "Propose values near these, such as lr=3e-4 or lr=3e-4,1e-2, for a while, as long as results agree.",
        {
            "point": Argument(dict[str, Scalar | list[Scalar]]),
            "drop": Argument(bool | None, "Believe in these values no more."),
        }, undo=True,
    ),
    "avoid": Operation(
        'Propose no trial in REGION, such as "batch_size>=512 and width>=1024".', {"region": Argument(str)}, undo=True
    ),
    "narrow": Operation(
        "Propose trials within ranges only, such as lr=1e-4..1e-2 or precision=bf16.",
        {"ranges": Argument(dict[str, str])}, undo=True,
    ),
    "budget": Operation(
        "Change the budget of the search.",
        {
            "trials": Argument(int | None, "How many trials to start in all."),
            "gpu_hours": Argument(float | None, "End the search after so many GPU-hours."),
            "concurrency": Argument(int | None, "How many trials run at a time."),
        }, undo=True,
    ),
    "pause": Operation(
        "Stop running trials at their next window, and begin none.",
        {"drain": Argument(bool | None, "Let running trials go on to their next rung or end.")}, undo=True,
    ),
    "continue": Operation("Let a paused search go on.", undo=True),
    "finish": Operation(
        "End the trials at their next rung or report, and confirm the best ones.",
        {"confirm": Argument(int | None, "By at most so many confirming runs.")},
    ),
    "undo": Operation(
        "Take back COMMAND, by its id or number in the log.",
        {"command": Argument(str | int)}, undo=True,
    ),
}  # fmt: skip
