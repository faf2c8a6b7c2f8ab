"""Several ranks against one process: python -m searchlight.trainables.preflight.ranks REQUEST, one process per rank.

The ranks are processes on this machine's CPU, whatever device trials have: what is compared does not depend on it.
"""

import copy
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.preflight.data_checks import MOST_SAMPLES, read_epoch
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding
from searchlight.trainables.preflight.observation import UNLIMITED
from searchlight.trainables.registry import enter_task_folder, get_python_path, load_class
from searchlight.trainables.training.trainer import TrialTrainer

LONGEST_S = 120.0
CLOSE = 1e-3  # relative difference of a metric that sums in another order explain


declare_kinds(
    "Exactness", Kind("ranks-differ", "error", "Return (mean, weight) from evaluate, and give each sample to one rank.")
)


declare_kinds(
    "Determinism and data",
    Kind("overlapping-shards", "error", "Split with self.context.shard: each sample belongs to one rank."),
)


def find_rank_problems(reference: str, config: Mapping[str, Any], workers: int) -> list[Finding]:
    """Compare the samples and the metrics of several ranks with those of one process. Return the differences."""
    try:
        ranks = run_ranks(reference, config, workers)
    except RuntimeError as error:
        return [make_finding("not-audited", f"{workers} ranks", str(error))]
    found, alone = [], _measure(reference, config, Context())
    objective = load_class(reference).objective
    values = [rank["metrics"].get(objective, math.nan) for rank in (alone, *ranks)]
    if not all(math.isclose(value, values[0], rel_tol=CLOSE, abs_tol=1e-6) for value in values):
        figure = f"{objective} is {values[1]:.6g} on {workers} ranks, and {values[0]:.6g} in one process"
        found.append(make_finding("ranks-differ", "evaluate", figure))
    whole, shards = Counter(alone["samples"]), [Counter(rank["samples"]) for rank in ranks]
    if len(alone["samples"]) < MOST_SAMPLES and whole and max(whole.values()) == 1:
        together = sum(shards, Counter[str]())
        twice = sum(count - 1 for count in together.values() if count > 1)
        missing = sum((whole - together).values())
        if twice:
            figure = f"{twice} of {len(whole)} samples are drawn by several ranks"
            found.append(make_finding("overlapping-shards", "train_batches", figure))
        if missing and together.keys() & whole.keys():  # else each rank augments its samples in its own way
            figure = f"{missing} of the {len(whole)} samples of an epoch are drawn by no rank"
            found.append(make_finding("ranks-differ", "train_batches", figure, "warning"))
    return found


def run_ranks(reference: str, config: Mapping[str, Any], workers: int) -> list[dict[str, Any]]:
    """Build the task on `workers` ranks. Return the samples and the metrics of each rank with its initial weights.

    Raises:
        RuntimeError: A rank ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="searchlight-ranks-") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": get_python_path()}
        processes = []
        for rank in range(workers):
            request = {"reference": reference, "config": config, "rank": rank, "ranks": workers, "folder": folder}
            command = [sys.executable, "-m", "searchlight.trainables.preflight.ranks", json.dumps(request)]
            processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        errors = []
        for process in processes:
            try:
                errors.append(process.communicate(timeout=LONGEST_S)[1])
            except subprocess.TimeoutExpired:
                errors.append(f"a rank has not ended within {LONGEST_S:.0f} s")
                for other in processes:
                    other.kill()
        results = [Path(folder, f"result-{rank}.json") for rank in range(workers)]
        if not all(result.is_file() for result in results):
            raise RuntimeError(next((error.strip().splitlines()[-1] for error in errors if error.strip()), "no result"))
        return [json.loads(result.read_text(encoding="utf-8")) for result in results]


def run_rank(reference: str, config: dict[str, Any], rank: int, ranks: int, folder: str) -> None:
    """Run this process as one rank of `ranks`, and write its samples and metrics to `folder`."""
    enter_task_folder()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    measured = _measure(reference, config, Context("cpu", rank, ranks))
    write_atomic(Path(folder, f"result-{rank}.json"), json.dumps(measured))


def _measure(reference: str, config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Return the metrics of one rank with its initial weights, and the digests of its samples in an epoch."""
    task_class = load_class(reference)
    values = task_class.config_class().model_validate(config).model_copy(update={**UNLIMITED, "precision": "fp32"})
    trainer = TrialTrainer(task_class(values, context))
    state = copy.deepcopy(trainer.task.state_dict())
    metrics = trainer.evaluate()
    trainer.task.load_state_dict(state)
    data = read_epoch(trainer.task, 0, lambda: False)
    trainer.close()
    return {"metrics": metrics, "samples": data.samples}


if __name__ == "__main__":
    run_rank(**json.loads(sys.argv[1]))
    os._exit(0)  # threads that a task left must not keep the process
