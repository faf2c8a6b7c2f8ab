"""Runs a command for a short time, to find the metrics that a search can judge it by."""

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution

from searchlight.search.space.search_space import Space
from searchlight.trainables.command.collector import Seen
from searchlight.trainables.command.program import Program
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.template import find_placeholders
from searchlight.trainables.command.trial_folder import TrialFolder

LINES = 1000  # of the output that are searched for metrics
HELD_OUT = re.compile(r"(?i)(^|[^a-z])(valid|validation|val|eval|test|dev|heldout)([^a-z]|$)")
LOWER = re.compile(
    r"(?i)loss|error|perplexity|regret|(^|[^a-z])(ppl|nll|wer|cer|ter|mse|rmse|mae|mape|bpb|bpc|fid)([^a-z]|$)"
)
HIGHER = re.compile(
    r"(?i)accuracy|reward|return|score|precision|recall|success|bleu|rouge|auroc"
    r"|(^|[^a-z])(acc\d?|f1|auc|r2|psnr|ssim|iou|miou|dice|map|mcc|mrr|ndcg)([^a-z]|$)"
)
# A metric in a line of output: one or two words, of which the last is a metric's name, and a number.
NUMBER = r"([-+.\w]+)"
PRINTED = re.compile(
    r"(?P<label>(?:[A-Za-z][\w/.-]*[ ])?[A-Za-z][\w/.-]*)(?P<between>['\"]?\s*[:=]?\s*)(?=[-+]?\d*\.?\d+|nan|inf)"
)


@dataclass(frozen=True)
class Observation:
    """What a command gave in a short time.

    Attributes:
        seen: Its metrics by name.
        output: The last lines that it printed.
        seconds: How long it ran.
        has_ended: Whether it ended by itself.
        failure: Why it failed, or "".
    """

    seen: Mapping[str, Seen]
    output: tuple[str, ...]
    seconds: float
    has_ended: bool
    failure: str


def observe(settings: CommandSettings, space: Space, seconds: float) -> Observation:
    """Run a command for at most some seconds, in a folder that is deleted, with its own defaults.

    Fixed parameters have their values. A searched one that the command names has the middle of its range.
    """
    values = space.fixed_values() | {
        parameter.name: choose_middle(parameter.distribution)
        for parameter in space.parameters
        if {parameter.name, parameter.name.replace("_", "-")} & {*find_placeholders(settings.words)}
    }
    with tempfile.TemporaryDirectory(prefix="searchlight-") as root:
        settings = replace(settings, trial_root=str(Path(root) / "search" / "trials"), objectives=())
        folder = TrialFolder(settings, 0)
        began = time.monotonic()
        with Program(settings, folder, values, os.environ) as program:
            for _ in program.generate_reports(lambda: time.monotonic() - began > seconds):
                pass
            took, has_ended = time.monotonic() - began, program.code is not None
            failure = program.describe_failure() if has_ended else ""
        text = folder.output.read_text(encoding="utf-8", errors="replace")
    lines = text.replace(str(folder.path), settings.folder).splitlines()[-LINES:]
    return Observation(program.seen, tuple(lines), took, has_ended, failure)


def choose_middle(searched: Any) -> Any:
    """Return a value in the middle of a distribution, or its first choice.

    >>> from optuna.distributions import FloatDistribution
    >>> choose_middle(FloatDistribution(1e-4, 1e-2, log=True))
    0.001
    """
    if isinstance(searched, CategoricalDistribution):
        return searched.choices[0]
    middle = (searched.low * searched.high) ** 0.5 if searched.log else (searched.low + searched.high) / 2
    if searched.step:
        middle = searched.low + round((middle - searched.low) / searched.step) * searched.step
    return round(middle) if isinstance(searched, IntDistribution) else float(f"{middle:.6g}")


def propose_objectives(seen: Mapping[str, int]) -> list[str]:
    """Return NAME:min or NAME:max for the metrics whose name says which is better, the best proposal first.

    Those of data that no training uses come first, then those that are no loss, then those with more values.

    >>> propose_objectives({"train_loss": 100, "eval_loss": 3, "eval_accuracy": 3, "eval_runtime": 3})
    ['eval_accuracy:max', 'eval_loss:min', 'train_loss:min']
    """
    modes = {name: "min" if LOWER.search(name) else "max" for name in seen if LOWER.search(name) or HIGHER.search(name)}
    ranked = sorted(modes, key=lambda name: (not HELD_OUT.search(name), modes[name] == "min", -seen[name], name))
    return [f"{name}:{modes[name]}" for name in ranked]


def propose_patterns(lines: tuple[str, ...]) -> list[tuple[str, str]]:
    r"""Return the names and the expressions of metrics that are in lines of output, the best proposal first.

    >>> propose_patterns(("step 0: train loss 4.2, val loss 4.3", "iter 1: time 20.1ms"))
    [('val_loss', 'val loss ([-+.\\w]+)'), ('train_loss', 'train loss ([-+.\\w]+)')]
    """
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for match in PRINTED.finditer(line):
            label = match["label"]
            if LOWER.search(label.split()[-1]) or HIGHER.search(label.split()[-1]):
                between = re.sub(r"\s+", " ", match["between"])
                name = re.sub(r"[^\w/.-]+", "_", label).lower()
                found[name, f"{label}{between}{NUMBER}"] += 1
    modes = {name: text for (name, text), _ in reversed(found.most_common())}
    counts = {name: sum(count for (other, _), count in found.items() if other == name) for name in modes}
    return [(name, modes[name]) for name in (each.rpartition(":")[0] for each in propose_objectives(counts))]
