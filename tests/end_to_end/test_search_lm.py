"""A whole search of the task lm with sharded models, in each precision."""

import re

import pytest

from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.processes import contains, find_actors, wait_until
from trainables.context import Context
from trainables.lm import LmTask
from trainables.lm.config import LmConfig
from trainables.training.trainer import train

SIZES = "width=16 depth=1 heads=2 length=16 samples=400 batch_size=2 test_samples=20 epochs=3 optimizer=adamw"
OPTIONS = ["lm", "--workers", "2", "--trials", "3", "--concurrency", "1", "--scheduler", "none"]
POINTS = [part for name in ("bf16", "fp16") for part in ("--try", f"precision={name}")]
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}  # in fp16, other windows may overflow


@pytest.mark.slow
def test_sharded_search_with_a_killed_rank_has_the_curves_of_one(make_cli):
    """Of one rank, which trains whole models with the batches of both."""
    cli = make_cli()
    process = cli.start(*OPTIONS, *POINTS, "--name", "shards", "--json", "--set", *SIZES.split(), "shard=full")
    journal = cli.folder / "runs" / "shards" / "study.journal"
    wait_until(lambda: contains(journal, "report/1"), process)
    wait_until(lambda: find_actors(process, "RayTrainWorker"), process)[-1].kill()
    shards = FinishedSearch(cli, cli.finished(process), "shards")
    assert shards.json["outcomes"] == {"completed": 3}
    # The other rank's error comes first or not.
    assert re.search(r"lost its workers \(.*\), and continues from its last checkpoint", shards.done.stderr)
    for trial in shards.study.trials:
        config = LmConfig(**{**trial.user_attrs["config"], "shard": "none", "batch_size": 4})
        alone = [report["val/bpb"] for report in train(LmTask(config, Context(files=shards.folder / "files")))]
        curve = [row["val/bpb"] for row in shards.rows if row["trial_id"] == trial.number]
        assert curve == pytest.approx(alone, rel=TOLERANCE[config.precision])
