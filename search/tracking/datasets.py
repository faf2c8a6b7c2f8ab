"""What the trials of a search train and evaluate on, and whether that is what it was."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from search.study.datasets import Told

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

CONTEXT = "mlflow.data.context"  # the tag by which MLflow's UI says what data is used for
LONGEST_DIGEST = 36  # that MLflow takes


def to_dataset_inputs(datasets: Sequence[Told]) -> "dict[tuple[str, str], DatasetInput]":
    """Data sets as MLflow takes them, by name and digest: a run has one input for each, whatever it is used for."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    uses: dict[tuple[str, str], list[str]] = {}
    for data in datasets:
        uses.setdefault((data["name"], data["digest"][:LONGEST_DIGEST]), []).append(data["use"])
    sources = {(data["name"], data["digest"][:LONGEST_DIGEST]): data["source"] for data in datasets}
    return {
        key: DatasetInput(Dataset(*key, *_parse_source(sources[key])), [InputTag(CONTEXT, ", ".join(used))])
        for key, used in uses.items()
    }


def _parse_source(text: str) -> tuple[str, str]:
    """The kind of a source and the source, as MLflow has them."""
    if not text:
        return "code", json.dumps({"tags": {}})
    if text.startswith(("http://", "https://")):
        return "http", json.dumps({"url": text})
    return "local", json.dumps({"uri": text})
