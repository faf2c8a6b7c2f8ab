"""Show what learns of the ARC task's prompts, what a checkpoint holds, and what one trial leaves to the next."""

import math

import pytest
import torch

from searchlight.models.arc.prompt import cache as vectors
from searchlight.trainables import checkpoint
from searchlight.trainables.arc import data
from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer
from tests.models.arc.prompt.conftest import saved as saved
from tests.trainables.arc.small_arc import arc, built, few, moved, weights
from tests.trainables.toy_models import identical


@pytest.mark.parametrize("train", ["frozen", "full"])
def test_encoder_learns_and_its_gradient_is_reported(tmp_path, train):
    training = TrialTrainer(arc(episodes=8, prompt={"train": train}))
    before = weights(training, "prompt")
    report = training.run_epoch()  # of one window
    norms = training.task.updaters["train"].gradient_norms()
    own = [norm for name, norm in norms.items() if name.startswith("prompt.")]
    assert report["train/prompt_grad_norm"] == pytest.approx(math.hypot(*own))
    assert 0 < report["train/prompt_grad_norm"] < report["train/grad_norm"]
    assert moved(training, "prompt", before) == {True}
    training.save(tmp_path / "epoch-1.pt")
    held = checkpoint.load(tmp_path / "epoch-1.pt")["modules"]["prompt"]
    for names in (before, held):
        assert any("language" in name for name in names) == (train == "full")
    assert all(value.dtype == torch.float32 for value in held.values())


@pytest.mark.parametrize(("train", "precision"), [("frozen", "fp32"), ("full", "bf16"), ("full", "fp16")])
def test_own_language_model_is_read_and_trained(saved, train, precision):
    task = arc(episodes=8, precision=precision, prompt={"model": str(saved), "train": train, "text": "grids"})
    assert TrialTrainer(task).run_epoch()["train/prompt_grad_norm"] > 0
    assert task.modules["prompt"].text[0].normalized_shape == (32,)
    assert task.text.dtype == (torch.float32 if train == "frozen" else torch.int64)


BEFORE = Context()


def test_next_trial_gets_what_was_prepared(monkeypatch):
    first = built(BEFORE, max_side=5)
    BEFORE.cache_store.drop_changed()  # as between two trials
    monkeypatch.setattr(data, "load_puzzles", lambda *arguments: pytest.fail("puzzles were loaded again"))
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    other = {"agent_lr": 1e-2, "seed": 3, "prompt": {"dim": 8}, "samples": 2, "candidates": 2}
    again = built(BEFORE, max_side=5, **other)
    assert again.pool is first.pool
    assert again.text is first.text
    assert all(theirs is own for theirs, own in zip(first.evaluation_set, again.evaluation_set, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        *({"prompt": prompt} for prompt in ({"text": "grids"}, {"max_tokens": 5}, {"train": "full"})),
        *({"max_side": 4}, {"views": 3}, {"rehearsals": 2}, {"max_demos": 1}, {"learn_from": "pairs"}),
        *({"data": ..., "max_side": 6}, {"evaluation_data": ..., "max_side": 6}),
    ],
    ids=str,
)
def test_trial_with_other_puzzles_or_texts_prepares_its_own(tmp_path, other):
    other = {name: few(tmp_path, evaluation=2) if value is ... else value for name, value in other.items()}
    built(BEFORE, max_side=5)
    second, fresh = (built(context, **{"max_side": 5, **other}) for context in (BEFORE, Context()))

    def prepared(task):
        evaluation_set = task.evaluation_set
        texts = [task.text, evaluation_set.test_text, evaluation_set.rehearsal_text]
        return [
            texts,
            len(task.pool),
            task.pool.max_demos,
            len(evaluation_set.tests),
            len(evaluation_set.rehearsals),
            evaluation_set.rehearsed,
        ]

    assert identical(prepared(second), prepared(fresh))
    assert [puzzle.id for puzzle in second.puzzles] == [puzzle.id for puzzle in fresh.puzzles]


def test_vectors_on_disk_replace_reading_texts(tmp_path, monkeypatch):
    folder = tmp_path / "deep" / "vectors"
    first = built(Context(), max_side=5, prompt={"cache": str(folder)})
    assert len(list(folder.glob("*.npy"))) == len(list(folder.iterdir())) > len(first.pool)
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    second = built(Context(), max_side=5, prompt={"cache": str(folder)})
    assert torch.equal(second.text, first.text)
    assert torch.equal(second.evaluation_set.test_text, first.evaluation_set.test_text)
