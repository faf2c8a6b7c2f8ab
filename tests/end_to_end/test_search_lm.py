"""A whole search of the task lm with sharded models, beside one with replicas, in each precision."""

import re

import pytest

from tests.end_to_end.finished_search import FinishedSearch
from tests.end_to_end.processes import contains, find_actors, wait_until

SIZES = "width=16 depth=1 heads=2 length=16 samples=120 batch_size=2 test_samples=20 epochs=3 optimizer=adamw"
OPTIONS = ["lm", "--workers", "2", "--trials", "3", "--concurrency", "1", "--scheduler", "none"]
POINTS = [part for name in ("bf16", "fp16") for part in ("--try", f"precision={name}")]
TOLERANCE = {"fp32": 5e-6, "bf16": 2e-2, "fp16": 5e-3}


def curves_of(search):
    """The objective by precision and epoch."""
    return {(row["config/precision"], row["epoch"]): row["val/bpb"] for row in search.rows if row["epoch"]}


@pytest.mark.slow
def test_sharded_search_with_a_killed_rank_has_the_curves_of_replicas(make_cli):
    cli = make_cli()
    replicas = FinishedSearch.run(cli, "replicas", *OPTIONS, *POINTS, "--set", *SIZES.split())
    command = [*OPTIONS, *POINTS, "--name", "shards", "--json", "--set", *SIZES.split(), "shard=full"]
    process = cli.start(*command)
    journal = cli.folder / "runs" / "shards" / "study.journal"
    wait_until(lambda: contains(journal, "report/1"), process)
    wait_until(lambda: find_actors(process, "RayTrainWorker"), process)[-1].kill()
    shards = FinishedSearch(cli, cli.finished(process), "shards")
    assert shards.json["outcomes"] == replicas.json["outcomes"] == {"completed": 3}
    # The other rank's error comes first or not.
    assert re.search(r"lost its workers \(.*\), and continues from its last checkpoint", shards.done.stderr)
    mine, theirs = curves_of(shards), curves_of(replicas)
    assert mine.keys() == theirs.keys()
    assert len(mine) == 9
    for (precision, epoch), value in mine.items():
        assert value == pytest.approx(theirs[precision, epoch], rel=TOLERANCE[precision])
