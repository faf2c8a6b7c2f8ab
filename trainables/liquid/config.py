"""The parameters of the task `liquid` and their search space."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from searchlight.models.liquid.continual import Scenario
from searchlight.trainables.liquid.data import check, resolve_data
from searchlight.trainables.task import TaskConfig, searchable
from searchlight.trainables.task.config import ConfigPart

Share = Annotated[float, Field(ge=0, lt=1)]


class SpikingConfig(ConfigPart):
    """Parameters of the spiking neurons."""

    neurons: PositiveInt = Field(32, description="neurons of each spiking layer")
    decay: Annotated[float, Field(gt=0, lt=1)] = searchable(
        0.9, low=0.5, high=0.99, description="factor of a membrane's potential per step"
    )
    threshold: PositiveFloat = searchable(1.0, low=0.25, high=2.0, description="potential above which a neuron spikes")
    slope: PositiveFloat = searchable(
        4.0, low=1.0, high=50.0, log=True, description="slope of the surrogate derivative"
    )
    surrogate: Literal["atan", "fast_sigmoid"] = Field("atan", description="surrogate derivative of a spike")
    learn_decay: bool = Field(True, description="each neuron learns its decay")
    learn_threshold: bool = Field(False, description="each neuron learns its threshold")
    rate_weight: NonNegativeFloat = Field(0.0, description="weight of the penalty on rates outside these bounds")
    lowest_rate: Share = Field(0.02, description="smallest rate of a layer, in spikes per neuron and step")
    highest_rate: Share = Field(0.5, description="largest rate of a layer, in spikes per neuron and step")

    @model_validator(mode="after")
    def _check_rates(self) -> "SpikingConfig":
        if self.lowest_rate > self.highest_rate:
            raise ValueError(
                f"must have a lowest_rate of at most its highest_rate, {self.highest_rate}, but got "
                f"{self.lowest_rate}. Lower it."
            )
        return self


class PlasticityConfig(ConfigPart):
    """Parameters of synapses that follow a local rule, in addition to those that follow the gradient."""

    rule: Literal["none", "pair", "triplet", "homeostatic", "bcm"] = Field(
        "none", description="rule of plastic synapses; none: no plastic synapses"
    )
    rate: PositiveFloat = Field(1.0, description="factor of the rule's change in each update")
    tau: PositiveFloat = Field(20.0, description="time constant of the traces of spikes, in steps")
    target_rate: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="spikes per step that the homeostatic rule and BCM aim at"
    )
    homeostasis: NonNegativeFloat = Field(
        0.2, description="rule homeostatic: inhibition that an update adds for each spike per step above target_rate"
    )
    stiffness: NonNegativeFloat = Field(0.0, description="resistance of strong synapses to depression; 0: none")
    meta: bool = Field(False, description="learn the rates of the rule from its effect on the loss")
    meta_lr: PositiveFloat = Field(0.01, description="learning rate of these rates")


class ContinualConfig(ConfigPart):
    """Parameters of the stream of tasks."""

    tasks: PositiveInt = Field(5, description="number of tasks, learned one after another; 1: all at once")
    scenario: Scenario = Field(
        "class", description="task of a sample: known (task), not predicted (domain), or predicted (class)"
    )


class ConsolidationConfig(ConfigPart):
    """Parameters of the penalty that keeps weights that earlier tasks need."""

    method: Literal["none", "ewc", "si"] = searchable(
        "none", choices=["none", "ewc", "si"], description="elastic weight consolidation or synaptic intelligence"
    )
    ewc_strength: NonNegativeFloat = searchable(
        1e3, low=1.0, high=1e8, log=True, when={"consolidation.method": "ewc"}, description="strength of the penalty"
    )
    si_strength: NonNegativeFloat = searchable(
        10.0, low=1e-2, high=1e5, log=True, when={"consolidation.method": "si"}, description="strength of the penalty"
    )
    decay: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="factor of earlier Fishers per task")
    fisher_samples: PositiveInt = Field(512, description="sequences of a task for its Fisher")


class ReplayConfig(ConfigPart):
    """Parameters of the replay of samples of earlier tasks in every window."""

    fraction: Share = searchable(0.5, low=0.0, high=0.8, description="replayed share of a micro-batch")
    size: PositiveInt = searchable(100, low=20, high=1000, log=True, description="samples in memory")
    balanced: bool = Field(True, description="same number of samples of each earlier task")
    logits_weight: NonNegativeFloat = searchable(
        0.0, low=0.0, high=1.0, description="weight of the distance from stored outputs (DER++)"
    )


class LiquidConfig(TaskConfig):
    """Parameters of the task `liquid`. docs/development/liquid.md gives the sources of ranges."""

    lr: PositiveFloat = searchable(1e-2, low=1e-3, high=3e-2, log=True, description="peak learning rate")
    width: PositiveInt = searchable(32, choices=[16, 32, 64], description="features of the residual stream")
    cell: Literal["cfc", "liquid", "ncp"] = searchable(
        "cfc", choices=["cfc", "liquid", "ncp"], description="kind of the liquid cells"
    )
    accumulation: PositiveInt = searchable(1, choices=[1, 2, 4], description="micro-batches per optimizer update")
    epochs: PositiveInt = Field(15, description="epochs of all tasks together")
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        0.98, description="decay of averaged weights; none: no averaging"
    )
    data: str = Field("digits", description="digits, text, series, or a folder: of text by domain, or of IDX files")
    length: Annotated[int, Field(ge=1, le=8192)] = Field(128, description="steps of a sequence of bytes or values")
    samples: PositiveInt = Field(512, description="largest number of sequences in an epoch")
    test_samples: PositiveInt = Field(400, description="largest number of test sequences of each domain")
    batch_size: PositiveInt = Field(16, description="sequences of a micro-batch, without replayed ones")
    layers: PositiveInt = Field(1, description="number of blocks")
    units: Annotated[int, Field(ge=3)] = Field(32, description="units of each liquid cell")  # an NCP has three layers
    dropout: Share = Field(0.0, description="dropout of the output of a block")
    weight_decay: NonNegativeFloat = Field(0.01, description="weight decay of matrices")
    warmup: Annotated[float, Field(ge=0, le=1)] = Field(0.02, description="share of the updates before the peak rate")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate after the warm-up")
    spiking: SpikingConfig = SpikingConfig()
    plasticity: PlasticityConfig = PlasticityConfig()
    continual: ContinualConfig = ContinualConfig()
    consolidation: ConsolidationConfig = ConsolidationConfig()
    replay: ReplayConfig = ReplayConfig()

    @field_validator("data")
    @classmethod
    def _resolve_data(cls, data: str) -> str:
        return resolve_data(data)

    @model_validator(mode="after")
    def _check_stream(self) -> "LiquidConfig":
        if self.epochs < self.continual.tasks:
            raise ValueError(
                f"epochs must be at least continual.tasks, {self.continual.tasks}, but got {self.epochs}. "
                "Each task is learned for an epoch or more."
            )
        check(self.data, self.length, self.continual.tasks, self.continual.scenario)
        return self
