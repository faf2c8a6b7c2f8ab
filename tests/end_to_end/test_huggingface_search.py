"""A whole search over Hugging Face's Trainer with the callback of Ray Train, which looks for files where it runs."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.finished_search import FinishedSearch

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface.py"
STEPS = 25  # of an epoch

pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")


def test_checkpoint_of_a_trial_is_its_own(make_cli):
    options = ["--objective", "eval_accuracy:max", "--trials", "5", "--concurrency", "1", "--seed", "1"]
    space = ["--search", "lr=1e-3..1e-1:log", "--set", "epochs=9", "warmup_steps=5"]
    found = FinishedSearch.run(make_cli(), "own", f"{EXAMPLE}:train_fn", *options, *space)
    assert set(found.json["outcomes"]) == {"completed", "pruned"}
    assert all(epochs == list(range(1, len(epochs) + 1)) for epochs in found.epochs().values())
    assert {1, 9} <= {max(epochs) for epochs in found.epochs().values()} <= {1, 3, 9}
    assert {row["step"] for row in found.rows if row["epoch"] == 9} == {9 * STEPS}, "those that went on trained on"
    kept = list(found.folder.glob("checkpoints/*/epoch-*"))
    assert len(kept) == 5, "the best of each trial"
    for folder in kept:
        state = json.loads((folder / "checkpoint" / "trainer_state.json").read_text())
        assert state["global_step"] == STEPS * int(folder.name.split("-")[1])
    best = found.json["best"]
    assert best["config"] == {"seed": 1, "epochs": 9, "warmup_steps": 5, "lr": best["config"]["lr"]}
    assert best["value"] == max(row["eval_accuracy"] for row in found.rows)
    assert Path(best["checkpoint"]) in kept
    assert len(found.children()) == 5
