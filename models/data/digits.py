"""The handwritten digits of scikit-learn, which need no download."""

import numpy as np
import torch

from searchlight.models.data.samples import Domain, Samples, Source

CLASSES, SIDE, BRIGHTEST = 10, 8, 16
EVERY = 5  # one of so many samples is tested on


def load_digits() -> Source:
    """Load 1797 digits of 8x8 pixels in 0..1, each a sequence of its 8 rows; 1437 for training and 360 for testing.

    The split is fixed: every fifth sample, sorted by label, is a test sample, so that both parts have the same share of
    each class. Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    # Imported here, since it takes a second and other sources do not need it.
    from sklearn.datasets import load_digits as load

    data = load()
    images = torch.from_numpy(np.asarray(data.images, dtype=np.float32) / BRIGHTEST)
    labels = torch.from_numpy(np.asarray(data.target, dtype=np.int64))
    samples = Samples(images, labels)
    by_label = torch.argsort(labels, stable=True)
    tested = torch.zeros(len(labels), dtype=torch.bool)
    tested[by_label[::EVERY]] = True
    domain = Domain("digits", samples.select_rows(~tested), samples.select_rows(tested))
    return Source("labels", "digits", CLASSES, SIDE, CLASSES, (domain,))
