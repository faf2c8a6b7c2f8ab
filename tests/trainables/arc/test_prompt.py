"""Show what learns of the ARC task's prompts, what a checkpoint holds, and what one trial leaves to the next."""

import pytest
import torch

from searchlight.models.arc.evaluation import puzzle_set
from searchlight.models.arc.prompt import cache as vectors
from searchlight.trainables import checkpoint
from searchlight.trainables.arc import data
from searchlight.trainables.context import Context
from searchlight.trainables.training.trainer import TrialTrainer
from tests.models.arc.prompt.conftest import saved as saved
from tests.trainables.arc.small_arc import arc, built, few, moved, weights
from tests.trainables.toy_models import identical


@pytest.mark.parametrize("train", ["frozen", "full"])
def test_encoder_learns_and_a_checkpoint_holds_what_learns(tmp_path, train):
    training = TrialTrainer(arc(use_prompt=True, episodes=8, prompt={"train": train}))
    before = weights(training, "prompt")
    training.run_epoch()  # of one window
    norms = training.task.updaters["train"].gradient_norms()
    assert all(norm > 0 for name, norm in norms.items() if name.startswith("prompt."))
    assert moved(training, "prompt", before) == {True}
    training.save(tmp_path / "epoch-1.pt")
    held = checkpoint.load(tmp_path / "epoch-1.pt")["modules"]["prompt"]
    for names in (before, held):
        assert any("language" in name for name in names) == (train == "full")
    assert all(value.dtype == torch.float32 for value in held.values())


@pytest.mark.parametrize(("train", "precision"), [("frozen", "fp32"), ("full", "bf16"), ("full", "fp16")])
def test_own_language_model_is_read_and_trained(saved, train, precision):
    prompt = {"model": str(saved), "train": train, "text": "grids"}
    training = TrialTrainer(arc(use_prompt=True, episodes=8, precision=precision, prompt=prompt))
    before = weights(training, "prompt")
    training.run_epoch()
    assert moved(training, "prompt", before) == {True}
    assert training.task.modules["prompt"].text[0].normalized_shape == (32,)
    assert training.task.texts[0].dtype == (torch.float32 if train == "frozen" else torch.int64)


BEFORE = Context()


def test_next_trial_gets_what_was_prepared(monkeypatch):
    first = built(BEFORE, use_prompt=True)
    BEFORE.cache_store.drop_changed()  # as between two trials
    monkeypatch.setattr(data, "load_puzzles", lambda *arguments: pytest.fail("puzzles were loaded again"))
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    monkeypatch.setattr(puzzle_set, "RewardTable", None)  # no program is executed
    other = {"policy_lr": 1e-2, "seed": 3, "prompt": {"dim": 8}, "samples": 2, "programs": 2}
    again = built(BEFORE, use_prompt=True, **other)
    assert again.training is first.training
    assert all(theirs is own for theirs, own in zip(first.texts, again.texts, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        *({"prompt": prompt} for prompt in ({"text": "grids"}, {"max_tokens": 5}, {"train": "full"})),
        *({"max_side": 4}, {"data": ..., "max_side": 6}, {"evaluation_data": ..., "max_side": 6}),
    ],
    ids=str,
)
def test_trial_with_other_puzzles_or_texts_prepares_its_own(tmp_path, other):
    other = {name: few(tmp_path, evaluation=2) if value is ... else value for name, value in other.items()}
    built(BEFORE, use_prompt=True)
    second, fresh = (built(context, use_prompt=True, **other) for context in (BEFORE, Context()))
    assert identical(second.texts, fresh.texts)
    for part in ("training", "judged", "asked"):
        ours, theirs = (getattr(task, part) for task in (second, fresh))
        assert torch.equal(ours.rewards, theirs.rewards)
        assert [puzzle.id for puzzle in ours.puzzles] == [puzzle.id for puzzle in theirs.puzzles]


def test_vectors_on_disk_replace_reading_texts(tmp_path, monkeypatch):
    folder = tmp_path / "deep" / "vectors"
    first = built(Context(), use_prompt=True, prompt={"cache": str(folder)})
    assert len(list(folder.glob("*.npy"))) == len(list(folder.iterdir())) > len(first.training.puzzles)
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    second = built(Context(), use_prompt=True, prompt={"cache": str(folder)})
    assert identical(second.texts, first.texts)
