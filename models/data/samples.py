"""Samples as tensors, and sources of samples."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from searchlight.models.data import autoregression, ngrams

Kind = Literal["labels", "bytes", "values"]

BYTES = 256


class Samples(NamedTuple):
    """N sequences of T steps with their targets.

    Attributes:
        inputs: (N, T, F) float32, or (N, T) uint8 of bytes.
        targets: (N,) int64 labels, (N, T) uint8 next bytes, or (N, T, K) float32 next values.
        dt: (N, T, 1) float32, the time from each input to the next one. None: all steps take 1.
    """

    inputs: Tensor
    targets: Tensor
    dt: Tensor | None = None

    @property
    def size(self) -> int:
        """N, the number of sequences."""
        return len(self.inputs)

    def select_rows(self, index: Tensor | slice) -> "Samples":
        """Return the sequences of `index`, in its order."""
        return Samples(self.inputs[index], self.targets[index], None if self.dt is None else self.dt[index])

    def to(self, device: torch.device) -> "Samples":
        """Return the samples on `device`."""
        return Samples(self.inputs.to(device), self.targets.to(device), None if self.dt is None else self.dt.to(device))

    @staticmethod
    def join(parts: "Sequence[Samples]") -> "Samples":
        """Concatenate `parts`. All of them must have time steps, or none."""
        dts = [part.dt for part in parts if part.dt is not None]
        return Samples(
            torch.cat([part.inputs for part in parts]),
            torch.cat([part.targets for part in parts]),
            torch.cat(dts) if dts else None,
        )


class Domain(NamedTuple):
    """One part of a source, with its training and test samples."""

    name: str
    train: Samples
    test: Samples


@dataclass(frozen=True, eq=False)
class Source:
    """Data that a network can learn from.

    Attributes:
        kind: "labels": one label per sequence; "bytes": the next byte at each step; "values": the next values.
        name: The argument of `load`.
        classes: Labels are 0..classes-1; 256 for bytes, 0 for values.
        features: Numbers in one step of the inputs; 0 for bytes, which are symbols.
        outputs: Numbers of an output: one per class, or the values of one step.
        domains: For labels one domain with all classes; for bytes and values the tasks of the stream, in its order.
    """

    kind: Kind
    name: str
    classes: int
    features: int
    outputs: int
    domains: tuple[Domain, ...]

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return int(self.domains[0].train.inputs.shape[1])

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (64 hexadecimal digits) of names, shapes and content, independent of the location."""
        sha = hashlib.sha256(f"{self.kind} {self.classes} {self.features} {self.outputs}\n".encode())
        for part in self._iterate_parts():
            sha.update(part)
        return sha.hexdigest()

    @cached_property
    def baselines(self) -> Mapping[str, Mapping[str, float]]:
        """Errors of simple models on the test part of each domain, lower is better; empty for labels.

        For bytes: bits per byte of n-grams, "1-gram" to "4-gram". For values: the mean squared error of "repeat" (the
        last value again), of "ar" (linear in the last values) and of "ar_dt" (linear in these and in their products
        with the time step). Computed on first use, in about a second per MB.
        """
        measure = {"labels": None, "bytes": _compute_ngram_bits, "values": _compute_squared_errors}[self.kind]
        return {domain.name: measure(domain) for domain in self.domains} if measure else {}

    def _iterate_parts(self) -> Iterator[bytes | memoryview]:
        for domain in self.domains:
            yield f"{domain.name!r}\n".encode()
            for name, samples in (("train", domain.train), ("test", domain.test)):
                for field, tensor in zip(samples._fields, samples, strict=True):
                    yield f"{name} {field}\n".encode()
                    if tensor is not None:
                        yield f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
                        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _compute_ngram_bits(domain: Domain) -> dict[str, float]:
    bits = ngrams.compute_bits_per_byte(_join_windows(domain.train), _join_windows(domain.test))
    return {f"{order}-gram": value for order, value in enumerate(bits, start=1)}


def _join_windows(samples: Samples) -> ngrams.Bytes:
    """Return the bytes that ordered windows were cut from."""
    first = samples.inputs[0, :1].numpy()
    return np.concatenate([first, samples.targets.reshape(-1).numpy()])


def _compute_squared_errors(domain: Domain) -> dict[str, float]:
    parts = []
    for samples in (domain.train, domain.test):
        dt = torch.ones(*samples.inputs.shape[:2], 1) if samples.dt is None else samples.dt
        parts.append(autoregression.Series(samples.inputs.numpy(), samples.targets.numpy(), dt.numpy()))
    return autoregression.compute_squared_errors(*parts)
