"""What a search knows of the program that it runs, as the driver sends it to the workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST_SAVE_S = 5.0  # how long a program may write a checkpoint before it is ended


@dataclass(frozen=True)
class Flag:
    """The words that give one parameter to a program.

    Attributes:
        on: Words in which "{value}" stands for the value, e.g. ("--lr", "{value}"). The words of a switch have none.
            Without words, the program asks for the value.
        off: The words of a switch whose value is false.
        is_hydra: Whether the words are an override of Hydra, which has a syntax for values.
        is_list: Whether the program takes each item of a list as a word of its own, as with nargs of argparse.
        shared: An option that comes once before the words of all parameters that share it, or "".
    """

    on: tuple[str, ...]
    off: tuple[str, ...] = ()
    is_hydra: bool = False
    is_list: bool = False
    shared: str = ""


@dataclass(frozen=True)
class FileTarget:
    """A place in a file of the program that takes the value of a parameter.

    Attributes:
        path: The file, relative to the folder of the program.
        key: The place, e.g. "optimizer.lr" in a YAML file, or "main.config.lr" in Python code.
    """

    path: str
    key: str
    parameter: str


@dataclass(frozen=True)
class CommandSettings:
    """A program, how it takes its parameters, and how it says its metrics.

    Attributes:
        words: The command with its placeholders, e.g. ("python", "train.py", "--seed", "{seed}").
        folder: The folder in which the user gave the command, as an absolute path.
        trial_root: The folder that gets a folder for each trial.
        objectives: The metrics that the search judges. The first one ranks trials.
        flags: By parameter, how the command takes a value that has no other place.
        files: Values in YAML, JSON and TOML files.
        patches: Values in Python files.
        metrics: Patterns of metrics in the output, as NAME=REGEX or NAME=json.
        metrics_file: A CSV or JSON-lines file with metrics, or "".
        every: Average the metrics of this many steps into one report, or None.
        resume_with: Words that are appended if the program has been started before.
        stop_grace: Seconds between SIGTERM and SIGKILL.
        link: Whether the program runs in its trial's folder, which has links to the user's files.
        nproc: The number of processes that its launcher is to start: the GPUs of a trial, or else its CPUs.
        defaults: By parameter, the value that the program has by itself, as text, as far as it is known.
        warm: Whether the imports of a Python program may come from a process that is forked.
    """

    words: tuple[str, ...]
    folder: str
    trial_root: str
    objectives: tuple[str, ...]
    flags: Mapping[str, Flag] = field(default_factory=dict)
    files: tuple[FileTarget, ...] = ()
    patches: tuple[FileTarget, ...] = ()
    metrics: tuple[str, ...] = ()
    metrics_file: str = ""
    every: float | None = None
    resume_with: tuple[str, ...] = ()
    stop_grace: float = 10.0
    link: bool = True
    nproc: int = 1
    defaults: Mapping[str, str] = field(default_factory=dict)
    warm: bool = True

    @property
    def can_resume(self) -> bool:
        """Whether the program, if it is started again, continues where it was stopped."""
        return bool(self.resume_with) or self.uses_checkpoints

    @property
    def copies_code(self) -> bool:
        """Whether trials have copies of Python files: a link would find unchanged files of the user beside it."""
        return bool(self.files or self.patches)

    @property
    def longest_stop_s(self) -> float:
        """How many seconds it may take to end the program: until it has saved, was asked to stop, and got SIGTERM."""
        return (LONGEST_SAVE_S if self.can_resume else 0.0) + 2 * self.stop_grace

    @property
    def uses_checkpoints(self) -> bool:
        """Whether the command names the folder for checkpoints."""
        return any("{checkpoint_dir}" in word for word in (*self.words, *self.resume_with))
