import numpy as np
import torch
from sklearn.datasets import load_digits

from models.liquid.data import load

DIGEST = "27fad7acaa4b924903907cf10e25706775069362936c4f84da499eba675cd212"


def rows(*parts: torch.Tensor) -> list[bytes]:
    return sorted(row.numpy().tobytes() for part in parts for row in part)


def test_digits_are_sequences_of_eight_rows() -> None:
    source = load("digits")
    (domain,) = source.domains
    assert (source.kind, source.name) == ("labels", "digits")
    assert (source.classes, source.features, source.outputs) == (10, 8, 10)
    assert domain.train.inputs.shape == (1437, 8, 8)
    assert domain.test.inputs.shape == (360, 8, 8)
    assert source.length == 8
    for samples in domain[1:]:
        assert (samples.inputs.dtype, samples.targets.dtype, samples.dt) == (torch.float32, torch.int64, None)
        assert samples.inputs.aminmax() == (0, 1)
    assert source.digest == DIGEST
    assert source.baselines == {}


def test_no_digit_is_trained_and_tested_on_and_none_is_lost() -> None:
    (domain,) = load("digits").domains
    everything = torch.from_numpy(load_digits().images.astype(np.float32) / 16)
    assert rows(domain.train.inputs, domain.test.inputs) == rows(everything)
    assert not set(rows(domain.train.inputs)) & set(rows(domain.test.inputs))


def test_every_digit_has_the_same_share_of_both_parts() -> None:
    (domain,) = load("digits").domains
    trained, tested = domain.train.targets.bincount(), domain.test.targets.bincount()
    assert ((trained + tested) / 5 - tested).abs().max() < 1


def test_labels_stay_with_their_images() -> None:
    (domain,) = load("digits").domains
    data = load_digits()
    labels = {image.astype(np.float32).tobytes(): label for image, label in zip(data.images, data.target, strict=True)}
    for image, label in zip(domain.test.inputs * 16, domain.test.targets, strict=True):
        assert labels[image.numpy().tobytes()] == label
