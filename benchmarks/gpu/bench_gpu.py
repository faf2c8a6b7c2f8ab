"""Run the benchmarks of a GPU, each of which turns claims into figures, and write docs/development/gpu.md.

A call takes ten minutes at most. It continues where the last one ended: a step that is done for this commit on this
device is not repeated. A step whose packages are missing is left out. Call it again until no step is left, which takes
three calls.

    python benchmarks/gpu/bench_gpu.py [--minutes 9.5] [--only STEP ...] [--again] [--device cpu --small]
"""

import importlib.util
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.bench import Benchmark, run
from benchmarks.gpu.claims import FAILS, create_device_parser
from benchmarks.page import write_pages
from benchmarks.recording import GPU, ROOT, describe_commit, describe_machine


@dataclass(frozen=True)
class Step(Benchmark):
    """A benchmark of a device.

    Attributes:
        needs: Packages without which the step is left out.
    """

    needs: tuple[str, ...] = ()


# The quick ones first, so that a device that does not work at all is known after a minute.
STEPS = [
    Step("gpu/environment.py", 20),
    Step("gpu/exactness.py", 30),
    Step("gpu/faults.py", 120),
    Step("gpu/simulated_verdicts.py", 60, ("hypothesis", "pytest")),
    Step("gpu/resume.py", 60),
    Step("gpu/warm_memory.py", 180),
    Step("gpu/predictions.py", 90),
    Step("gpu/lm_speed.py", 240),
    Step("gpu/ranks.py", 120),
    Step("gpu/device_tests.py", 240, ("pytest", "hypothesis")),
    Step(
        "update/update_overhead.py --models tiny,lm --rows plain,clip,fp16 --seconds 14",
        180,
        ("accelerate", "lightning", "transformers"),
    ),
    Step("gpu/turnaround.py", 240, ("ray", "optuna", "mlflow")),
    Step("gpu/lost_ranks.py", 180),
]


def is_done(path: Path, device: torch.device) -> bool:
    """Return whether a step has a result of this commit and machine."""
    if not path.exists():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    same = found.get("commit") == describe_commit() and found["machine"] == describe_machine()
    return same and f"--device {device}" in found["command"]


def run_steps(steps: list[Step], folder: Path, arguments: str, device: torch.device, minutes: float) -> list[str]:
    """Run the steps that are not done within `minutes`. Return a line for each step that failed or is left."""
    start, remaining, is_begun = time.monotonic(), [], False
    for step in steps:
        if is_done(folder / f"{step.name}.json", device):
            continue
        if missing := [name for name in step.needs if importlib.util.find_spec(name) is None]:
            print(f"{step.name}: left out, since {', '.join(missing)} is not installed", flush=True)
            continue
        left = 60 * minutes - (time.monotonic() - start)
        if left < step.seconds and is_begun:  # the first one may begin, else it never could
            remaining.append(f"{step.name}: is left")
            continue
        is_begun = True
        print(f"== {step.command}{arguments}", flush=True)
        outcome, seconds = run(Benchmark(step.arguments + arguments, step.seconds), folder, left)
        print(f"   {seconds:.0f} s  {outcome}", flush=True)
        if outcome != "done":
            remaining.append(f"{step.name}: {outcome}")
    return remaining


def find_failed_claims(folder: Path) -> list[str]:
    """Return a line for each claim that the figures do not support."""
    claims = [
        claim
        for path in sorted(folder.glob("*.json"))
        for claim in json.loads(path.read_text(encoding="utf-8"))["figures"].get("claims", [])
    ]
    return [f"{claim['claim']}: {claim['figure']}" for claim in claims if claim["verdict"] == FAILS]


def main() -> None:
    names = [step.name for step in STEPS]
    parser = create_device_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STEP", help=", ".join(names))
    parser.add_argument("--minutes", type=float, default=9.5, help="after which no step starts, and the last is ended")
    parser.add_argument("--again", action="store_true", help="repeat steps that are done")
    parser.add_argument("--results", type=Path, default=GPU, help="the folder of the results")
    given = parser.parse_args()
    if given.device.type == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "the device must be one that torch finds, but it finds no GPU. Try: nvidia-smi, or --device cpu --small"
        )
    given.results.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if step.name in given.only]
    if given.again:
        for step in steps:
            (given.results / f"{step.name}.json").unlink(missing_ok=True)
    arguments = f" --device {given.device}" + " --small" * given.small
    remaining = run_steps(steps, given.results, arguments, given.device, given.minutes)
    if given.results == GPU:
        write_pages()
        print(f"docs/development/gpu.md is written from {GPU.relative_to(ROOT)}/", flush=True)
    failed = find_failed_claims(given.results)
    print("\n".join([*failed, *remaining]) or "all steps are done, and all claims hold", flush=True)
    sys.exit(bool(failed) or any("failed" in line for line in remaining))


if __name__ == "__main__":
    main()
