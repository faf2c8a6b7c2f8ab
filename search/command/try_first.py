"""Runs a command for a short time, to find the metrics that a search can judge it by."""

import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import CategoricalDistribution, IntDistribution

from searchlight.search.command.functions import name_called_function
from searchlight.search.space.search_space import Space
from searchlight.trainables.command.call import OBJECTIVES
from searchlight.trainables.command.collector import Seen
from searchlight.trainables.command.metrics_file import MetricsFile
from searchlight.trainables.command.output import ESCAPES
from searchlight.trainables.command.program import Program
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.template import find_placeholders
from searchlight.trainables.command.trial_folder import TrialFolder

LINES = 1000  # of the output that are searched for metrics
LONGEST = 1000  # characters of a line that are searched for metrics, since the time grows with their square
LARGEST = 2**24  # bytes of a file that is searched for metrics
HELD_OUT = re.compile(r"(?i)(^|[^a-z])(valid|validation|val|eval|test|dev|heldout)([^a-z]|$)")
TRAINING = re.compile(r"(?i)(^|[^a-z])train(ing)?([^a-z]|$)")
LOWER = re.compile(
    r"(?i)loss|error|perplexity|regret|brier|neg(ative)?[^a-z]?log[^a-z]?lik"
    r"|(^|[^a-z])(ppl|nll|wer|cer|ter|mse|rmse|mae|mape|bpb|bpc|fid)([^a-z]|$)"
)
HIGHER = re.compile(
    r"(?i)accuracy|reward|return|score|precision|recall|success|bleu|rouge|auroc"
    r"|(^|[^a-z])(acc\d?|f1|auc|r2|psnr|ssim|iou|miou|dice|map|mcc|mrr|ndcg)([^a-z]|$)"
)
# As scikit-learn calls what it maximizes. A metric of which more is better may be one of negative examples instead.
NEGATED = re.compile(r"(?i)(^|[^a-z])neg(ative)?[^a-z](?!log[^a-z]?lik)")
# A metric in a line of output: one or two words, of which the last is a metric's name, and a number. Or the negative.
NUMBER = r"([-+.\w]+)"
LONGER = (r"[\w/.@-]", r"[A-Za-z][ ]")  # what ends the first part of a longer label
PRINTED = re.compile(
    r"(?<![A-Za-z])(?P<label>(?:(?i:neg(?:ative)?)[ ])?(?:[A-Za-z][\w/.@-]*[ ])?[A-Za-z][\w/.@-]*)"
    r"(?P<between>['\"]?\s*[:=]?\s*)(?=[-+]?\d*\.?\d+|nan|inf)"
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
        files: By the path of a CSV or JSON-lines file in its folder, how many values each metric has there.
    """

    seen: Mapping[str, Seen]
    output: tuple[str, ...]
    seconds: float
    has_ended: bool
    failure: str
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def observe(settings: CommandSettings, space: Space, seconds: float) -> Observation:
    """Run a command for at most some seconds, in a folder that is deleted, with its own defaults.

    Fixed parameters have their values. A searched one that the command names, or a function takes, has the middle of
    its range.
    """
    values = space.fixed_values() | {
        parameter.name: choose_middle(parameter.distribution)
        for parameter in space.parameters
        if name_called_function(settings.words)
        or {parameter.name, parameter.name.replace("_", "-")} & {*find_placeholders(settings.words)}
    }
    with tempfile.TemporaryDirectory(prefix="searchlight-") as root:
        environment = {**os.environ, OBJECTIVES: json.dumps(settings.objectives)}  # what a returned number is
        settings = replace(settings, trial_root=str(Path(root) / "search" / "trials"), objectives=())
        folder = TrialFolder(settings, 0)
        began, since = time.monotonic(), time.time()
        with Program(settings, folder, values, environment) as program:
            for _ in program.generate_reports(lambda: time.monotonic() - began > seconds):
                pass
            took, has_ended = time.monotonic() - began, program.code is not None
            failure = program.describe_failure() if has_ended else ""
        text = folder.output.read_text(encoding="utf-8", errors="replace")
        files = find_metrics_files(folder.current, since) if settings.link else {}
    lines = ESCAPES.sub("", text).replace(str(folder.path), settings.folder).splitlines()[-LINES:]
    return Observation(program.seen, tuple(lines), took, has_ended, failure, files)


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


def get_mode(name: str) -> str:
    """Return whether less or more of a metric is better, "min" or "max", or "" if its name does not say it.

    >>> [get_mode(name) for name in ("val_loss", "neg_log_loss", "neg_log_likelihood", "neg_recall")]
    ['min', 'max', 'min', '']
    """
    if NEGATED.search(name):
        return "max" if LOWER.search(name) else ""
    return "min" if LOWER.search(name) else "max" if HIGHER.search(name) else ""


def is_held_out(name: str) -> bool:
    """Return whether a metric is of data that no training uses, as far as its name says so."""
    return bool(HELD_OUT.search(name))


def propose_objectives(seen: Mapping[str, int]) -> list[str]:
    """Return NAME:min or NAME:max for the metrics whose name says which is better, the best proposal first.

    Those of data that no training uses come first, then those that are no loss, then those with more values.

    >>> propose_objectives({"train_loss": 100, "eval_loss": 3, "eval_accuracy": 3, "eval_runtime": 3})
    ['eval_accuracy:max', 'eval_loss:min', 'train_loss:min']
    """
    modes = {name: mode for name in seen if (mode := get_mode(name))}
    ranked = sorted(modes, key=lambda name: (not HELD_OUT.search(name), modes[name] == "min", -seen[name], name))
    return [f"{name}:{modes[name]}" for name in ranked]


class PrintedMetric(NamedTuple):
    """A metric in lines of output.

    Attributes:
        pattern: The expression that reads it.
        mode: "min" or "max", by its name.
        is_held_out: Whether its name or its lines say that it is of data that no training uses.
    """

    name: str
    pattern: str
    mode: str
    is_held_out: bool


def propose_patterns(lines: Sequence[str]) -> list[PrintedMetric]:
    r"""Return the metrics that lines of output have, the best proposal first. Of equal names, only that one.

    The first ones are of lines that begin with a star, which sum up an evaluation in many programs, then those of
    held-out data.

    >>> for metric in propose_patterns(("step 0: train loss 4.2, val loss 4.3", "iter 1: time 20.1ms")):
    ...     print(metric.name, metric.pattern, metric.is_held_out)
    val_loss val loss ([-+.\w]+) True
    train_loss train loss ([-+.\w]+) False
    """
    found: Counter[tuple[int, str, str, str]] = Counter()  # rank, marker of the line, label, pattern
    for line in lines:
        line = line[:LONGEST]
        for match in PRINTED.finditer(line):
            if get_mode(match["label"].split()[-1]) and get_mode(match["label"]):
                rank, marker = _find_marker(line, match.end("label"))
                between = re.sub(r"\s+", " ", match["between"])
                found[rank, marker, match["label"], f"{match['label']}{between}{NUMBER}"] += 1
    text = "\n".join(line[:LONGEST] for line in lines)
    ranked = sorted(found, key=lambda key: (key[0], get_mode(key[2]) == "min", -found[key], key[2]))
    proposed: dict[str, PrintedMetric] = {}
    for rank, marker, label, pattern in ranked:
        name = re.sub(r"[^\w/.-]+", "_", label).lower()
        others = [other for other in found if other[3] == pattern and other[1] != marker]
        for end in LONGER[: 1 if " " in label else 2]:
            if re.search(end + pattern, text) and re.search(bounded := f"(?<!{end}){pattern}", text):
                pattern = bounded
        if others and marker and marker not in label:  # which lines of the training have, too
            pattern = f"{re.escape(marker)}.*{pattern}"
        proposed.setdefault(name, PrintedMetric(name, pattern, get_mode(label), rank < 2))
    return [*proposed.values()]


def _find_marker(line: str, end: int) -> tuple[int, str]:
    """Return the rank of a metric whose label ends there in a line, and the word that says it, or "" for training."""
    if line.lstrip().startswith("*"):
        return 0, "*"
    held_out = [match for match in HELD_OUT.finditer(line[:end])]
    trained = [match.start() for match in TRAINING.finditer(line[:end])]
    if held_out and held_out[-1].start() > max(trained, default=-1):
        return 1, held_out[-1][2]
    return 2, ""


def find_metrics_files(folder: Path, since: float) -> dict[str, dict[str, int]]:
    """Return the CSV and JSON-lines files in `folder` that were written since then, with the counts of their metrics.

    Args:
        since: In seconds as of `time.time`.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_mtime < since or path.stat().st_size > LARGEST:
            continue
        with path.open("rb") as stream:
            is_json = stream.read(1) == b"{"
        if is_json or path.suffix == ".csv":
            rows = MetricsFile(path, is_new=True).read(is_complete=True)
            if counts := Counter(name for row in rows for name in row.metrics):
                files[str(path.relative_to(folder))] = dict(counts)
    return files
