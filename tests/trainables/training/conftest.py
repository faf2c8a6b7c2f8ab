import pytest


@pytest.fixture(autouse=True)
def _on_device(on_device: None) -> None:
    """Run all tests of this folder on `--device`."""
