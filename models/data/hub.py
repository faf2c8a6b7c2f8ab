"""Data sets of the Hugging Face Hub, the only source that is not offline."""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from searchlight.models.data.ngrams import Bytes
from searchlight.models.data.samples import Domain, Samples, Source
from searchlight.models.data.text import build_bytes_source

TEXT_BYTES = 2_000_000  # the first bytes of a data set
BRIGHTEST = 255


def load_hub(names: str, length: int = 128) -> Source:
    """Stream data sets from the Hub, from its cache, or from a local folder, with the package `datasets`.

    Args:
        names: `owner/name` or `owner/name:config`, or an absolute path of a folder; several texts joined by "+". One
            data set whose rows have an `image` and a `label` gives labels (splits train and test, rows of the image as
            steps). Those whose rows have a `text` give one domain each, of the first 2 MB of their split train.
        length: Bytes of a window of text.

    Raises:
        ValueError: `datasets` is not installed, or the rows have neither.
    """
    check_hub(names)
    from datasets import load_dataset

    texts: dict[str, Bytes] = {}
    for name in names.split("+"):
        path, _, config = name.partition(":")
        splits = load_dataset(path, config or None, streaming=True)
        if "train" not in splits:
            raise ValueError(f"source must have a split train, but got {', '.join(splits)} in {name}. Take another.")
        first: Mapping[str, Any] = next(iter(splits["train"]), {})
        if "text" in first:
            texts[name] = _read_first_bytes(row["text"] for row in splits["train"])
        elif {"image", "label"} <= first.keys() and name == names and "test" in splits:
            return build_labels_source(name, splits["train"], splits["test"])
        else:
            raise ValueError(
                f"source must have rows with a text, or be one data set with splits train and test and rows with an "
                f"image and a label, but got {', '.join(first) or 'no rows'} in {name}. Take another."
            )
    return build_bytes_source(names, texts, length)


def check_hub(names: str) -> None:
    """Check, without a request, that data sets of these names could be loaded.

    Raises:
        ValueError: `datasets` is not installed, or a name is empty.
    """
    if not all(names.split("+")):
        raise ValueError(f"source must name a data set, hub:owner/name, but got 'hub:{names}'. Add its name.")
    if find_spec("datasets") is None:
        raise ValueError(
            f"source must be one that is here without the package datasets, but got 'hub:{names}'. "
            "Install it: pip install datasets."
        )


def build_labels_source(name: str, train: Iterable[Any], test: Iterable[Any]) -> Source:
    """Return a source of labels from rows with an `image` (PIL) and a `label`."""
    parts = [_read_images(name, rows) for rows in (train, test)]
    if parts[0].inputs.shape[1:] != parts[1].inputs.shape[1:]:
        raise _build_size_error(name)
    if min(int(part.targets.min()) for part in parts) < 0:
        raise ValueError(f"source must have labels of 0 or more, but got a negative one in {name}. Take another.")
    classes = 1 + int(max(part.targets.max() for part in parts))
    return Source("labels", name, classes, parts[0].inputs.shape[2], classes, (Domain(name, *parts),))


def _read_images(name: str, rows: Iterable[Any]) -> Samples:
    """Return images with the channels of a pixel concatenated: (N, height, width * channels)."""
    images, labels = [], []
    for row in rows:
        pixels = np.asarray(row["image"], dtype=np.float32) / BRIGHTEST
        images.append(pixels.reshape(len(pixels), -1))
        labels.append(int(row["label"]))
    if len({image.shape for image in images}) != 1:
        raise _build_size_error(name)
    return Samples(torch.from_numpy(np.stack(images)), torch.tensor(labels))


def _build_size_error(name: str) -> ValueError:
    return ValueError(f"source must have images of one size, but got several, or none, in {name}. Take another.")


def _read_first_bytes(texts: Iterable[str]) -> Bytes:
    taken = bytearray()
    for text in texts:
        taken += text.encode() + b"\n"
        if len(taken) >= TEXT_BYTES:
            break
    return np.frombuffer(taken[:TEXT_BYTES], dtype=np.uint8)
