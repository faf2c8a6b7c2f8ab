"""The parameters of the task `lm` and their search space."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from searchlight.trainables.lm.data import check, resolve_data
from searchlight.trainables.task import TaskConfig, searchable


class LmConfig(TaskConfig):
    """Parameters of the task `lm`."""

    micro_batch_field = "batch_size"

    lr: PositiveFloat = searchable(
        5e-3, low=1e-3, high=3e-2, log=True, description="peak learning rate of the matrices of blocks"
    )
    embedding_lr: PositiveFloat = searchable(
        1e-2, low=1e-3, high=1e-1, log=True, description="peak learning rate of the embedding and the gains"
    )
    optimizer: Literal["adamw", "muon"] = Field("muon", description="of the matrices of blocks")
    width: PositiveInt = searchable(96, size=True, description="of the residual stream")
    base_width: PositiveInt | None = Field(
        None, description="width from which muP scales the rates, so that the best ones stay; none: no muP"
    )
    depth: PositiveInt = Field(2, description="blocks")
    heads: PositiveInt = Field(3, description="of the attention")
    data: str = Field("text", description="text, a file, or a folder with a .txt file or a subfolder for each domain")
    length: Annotated[int, Field(ge=2)] = Field(128, description="bytes of a sequence")
    batch_size: PositiveInt = Field(16, description="sequences of a micro-batch")
    samples: PositiveInt = Field(1600, description="sequences of an epoch, at random places of the text")
    test_samples: PositiveInt = Field(400, description="sequences that are evaluated, at most")
    epochs: PositiveInt = Field(9, description="epochs of a trial that is never stopped early")
    weight_decay: NonNegativeFloat = Field(0.1, description="of the matrices of blocks")
    warmup: Annotated[float, Field(ge=0, le=1)] = Field(0.05, description="share of the updates before the peak rate")
    z_loss: NonNegativeFloat = Field(1e-4, description="weight of the squared log-partition, which keeps logits small")
    shard: Literal["none", "full", "hybrid"] = Field(
        "none", description="split the model over all workers, or over those of a node with a replica on each node"
    )
    recompute: bool = Field(False, description="keep the inputs of blocks alone, and compute them again in backward")
    compiled: bool = Field(False, description="compile each block")

    @field_validator("data")
    @classmethod
    def _resolve_data(cls, data: str) -> str:
        return resolve_data(data)

    @model_validator(mode="after")
    def _check(self) -> "LmConfig":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of twice the heads, {2 * self.heads}, but got {self.width}. Change one."
            )
        check(self.data, self.length)
        return self
