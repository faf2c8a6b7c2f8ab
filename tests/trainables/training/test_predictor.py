"""Answer in arrays as the trial did that wrote the checkpoint, and leave nothing behind."""

import numpy as np
import pandas as pd
import pytest
import torch

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import CheckpointError
from searchlight.trainables.task import Task
from searchlight.trainables.training.predictor import Predictor
from tests.trainables.toy_models import Regression, RegressionConfig
from tests.trainables.training.trials import flip_bit, make_trial

PLAIN = f"{__name__}:Plain"


class Plain(Regression):  # predicts by default, and remembers what it predicted when it was evaluated
    def build(self):
        super().build()
        self.projection = torch.randn(3)  # of the trial's own random numbers, and in no checkpoint
        self.modules["model"].register_buffer("shift", torch.zeros(3), persistent=False)

    def loss(self, batch):
        self.modules["model"].shift += 0.01
        return super().loss(batch)

    def predict(self, inputs):
        return Task.predict(self, inputs + self.modules["model"].shift).squeeze(1)

    def evaluate(self):
        self.answers = self.predict(self.inputs)
        return super().evaluate()


class Odd(Regression):  # predicts in the way that the test sets
    how = staticmethod(lambda task, inputs: inputs)

    def predict(self, inputs):
        return self.how(self, inputs)


def trained(tmp_path, task, **settings):
    """A trial after an epoch, and its checkpoint."""
    training = make_trial(task, **{"dropout": 0.3, "epochs": 2, **settings})
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    return training, checkpoint.load(tmp_path / "epoch-1.pt")


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Makes a predictor that answers with what a function makes of its inputs."""
    _, state = trained(tmp_path, Regression)

    def make(how):
        monkeypatch.setattr(Odd, "how", staticmethod(lambda task, inputs: how(inputs)))
        return Predictor(f"{__name__}:Odd", state, "cpu")

    return make


@pytest.mark.parametrize(("precision", "ema_decay"), [("fp32", None), ("fp32", 0.9), ("bf16", 0.9), ("fp16", None)])
def test_predictor_answers_as_the_trial_bit_for_bit(tmp_path, precision, ema_decay):
    training, state = trained(tmp_path, Plain, precision=precision, ema_decay=ema_decay)
    predictor = Predictor(PLAIN, state, torch.get_default_device())
    answers = predictor(training.task.inputs.cpu().numpy())
    assert answers.dtype == np.float32
    assert torch.equal(torch.from_numpy(answers), training.task.answers.float().cpu())
    assert torch.equal(predictor.task.projection, training.task.projection)


def test_saved_predictor_is_smaller_and_answers_alike(tmp_path):
    training, state = trained(tmp_path, Plain, ema_decay=0.9, precision="bf16")
    inputs, path = training.task.inputs.cpu().numpy(), tmp_path / "weights.pt"
    before = Predictor(PLAIN, state, torch.get_default_device())
    before.save(path)
    after = Predictor.load(path, torch.get_default_device())
    assert np.array_equal(before(inputs), after(inputs))
    assert after.task.seen == training.task.seen > 0
    assert path.stat().st_size < 0.7 * (tmp_path / "epoch-1.pt").stat().st_size
    flip_bit(path)
    with pytest.raises(CheckpointError, match="it is corrupt"):
        Predictor.load(path)


def test_predictor_draws_no_numbers_and_tracks_no_gradient(tmp_path):
    _, state = trained(tmp_path, Plain)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    predictor = Predictor(PLAIN, state, "cpu")
    predictor.example()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert not any(p.requires_grad or p.grad is not None for p in predictor.task.modules["model"].parameters())


def test_dicts_of_arrays_are_converted_and_text_is_kept(odd):
    seen = {}

    def answer(inputs):
        seen.update(inputs)
        return {"doubled": inputs["x"] * 2, "words": inputs["text"], "half": inputs["x"].bfloat16()}

    text = np.array(["a", "b"])
    answers = odd(answer)({"x": np.array([1.0, 2.0]), "text": text})
    assert seen["x"].dtype is torch.float32, "numpy's fp64 is an accident, as in training"
    assert answers["doubled"].tolist() == [2.0, 4.0]
    assert answers["half"].dtype == np.float32, "numpy has no bf16"
    assert answers["words"] is text


def test_arrays_are_copied_and_data_frames_are_matrices(odd):
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    assert odd(lambda inputs: inputs.sum(1))(frame).tolist() == [4, 6]
    inputs = np.ones(3, dtype=np.float32)
    inputs.flags.writeable = False
    assert odd(lambda inputs: inputs.add_(1))(inputs).tolist() == [2, 2, 2]
    assert inputs.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="predict must return a tensor, an array or a dict of them, but got tuple"):
        odd(lambda inputs: (inputs, inputs))(np.ones(2))


def test_module_state_is_restored_after_each_call(tmp_path, monkeypatch):
    def counting(task, inputs):
        statistics = task.modules["model"][1].running_mean
        statistics += 1
        return statistics

    monkeypatch.setattr(Odd, "how", staticmethod(counting))
    predictor = Predictor(f"{__name__}:Odd", trained(tmp_path, Regression)[1], "cpu")
    first = predictor(np.ones(1)).copy()
    assert np.array_equal(predictor(np.ones(1)), first)


def test_several_modules_without_predict_raise_value_error():
    class Two(Regression):
        predict = Task.predict

        def build(self):
            super().build()
            self.modules["head"] = torch.nn.Linear(1, 1)

    task = Two(RegressionConfig())
    task.build()
    with pytest.raises(ValueError, match=r"^Two must define predict\(self, inputs\), since it has 2 modules, model, h"):
        task.predict(torch.ones(1, 3))


def test_example_is_eight_rows_of_the_first_micro_batch(tmp_path, monkeypatch):
    predictor = Predictor(PLAIN, trained(tmp_path, Plain, batch_size=16)[1], "cpu")
    example = predictor.example()
    assert example.shape == (8, 3)
    rows = predictor.task.inputs.numpy().tolist()
    assert all(row in rows for row in example.tolist())
    whole = {"x": torch.arange(9), "y": torch.arange(9)}
    monkeypatch.setattr(Plain, "train_batches", lambda task, epoch: iter([whole]))
    assert {name: part.tolist() for name, part in predictor.example().items()} == {name: [*range(8)] for name in "xy"}


@pytest.mark.parametrize(("batches", "kind"), [([], "NoneType"), ([(object(), 1)], "object")])
def test_missing_example_raises_value_error(tmp_path, monkeypatch, batches, kind):
    predictor = Predictor(PLAIN, trained(tmp_path, Plain)[1], "cpu")
    monkeypatch.setattr(Plain, "train_batches", lambda task, epoch: iter(batches))
    with pytest.raises(ValueError, match=rf"^Plain must define example\(self\), .* begin with {kind}"):
        predictor.example()
