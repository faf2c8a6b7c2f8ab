import io
from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture
def through_a_file() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Save and load a state as a checkpoint does."""

    def reload(state: dict[str, Any]) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    return reload
