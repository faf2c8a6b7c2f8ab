"""Data to learn step by step without a download: labeled images, bytes of text, and series."""

from searchlight.models.liquid.data.corpus import DOMAINS, build_corpus
from searchlight.models.liquid.data.ngrams import compute_bits_per_byte
from searchlight.models.liquid.data.samples import BYTES, Domain, Kind, Samples, Source
from searchlight.models.liquid.data.sources import SOURCES, check, load
from searchlight.models.liquid.data.text import cut_windows, read_corpus

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
