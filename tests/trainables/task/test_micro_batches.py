import pytest
from pydantic import field_validator

from searchlight.trainables.task import TaskConfig


class Config(TaskConfig):
    micro_batch_field = "batch_size"
    batch_size: int = 12


class Fixed(Config):
    @field_validator("batch_size")
    @classmethod
    def refuse_odd(cls, size):
        if size % 2:
            raise ValueError("batch_size must be even")
        return size


@pytest.mark.parametrize(
    ("config", "split"),
    [
        (Config(), (6, 2)),
        (Config(batch_size=6, accumulation=2), (3, 4)),
        (Config(batch_size=3, accumulation=4), (1, 12)),
        (Config(batch_size=1), None),
        (Fixed(batch_size=6), (2, 3)),
        (Fixed(batch_size=2), None),
        (TaskConfig(), None),
    ],
    ids=str,
)
def test_micro_batches_are_split_into_the_fewest_parts(config, split):
    expected = split and dict(zip(("batch_size", "accumulation"), split, strict=True))
    assert config.split_micro_batches() == expected
