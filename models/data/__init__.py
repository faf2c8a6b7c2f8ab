"""Data to learn step by step without a download: labeled images, bytes of text, and series."""

from searchlight.models.data.corpus import DOMAINS, build_corpus
from searchlight.models.data.ngrams import compute_bits_per_byte
from searchlight.models.data.samples import BYTES, Domain, Kind, Samples, Source
from searchlight.models.data.sources import SOURCES, check, load
from searchlight.models.data.text import cut_windows, read_corpus

__all__ = [
    "BYTES",
    "DOMAINS",
    "SOURCES",
    "Domain",
    "Kind",
    "Samples",
    "Source",
    "compute_bits_per_byte",
    "build_corpus",
    "check",
    "load",
    "read_corpus",
    "cut_windows",
]
