"""The parameters of the task `liquid` and their search space."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from models.liquid.continual import Scenario
from trainables.liquid.data import check, resolve_data
from trainables.task import TaskConfig, searchable
from trainables.task.config import ConfigPart

Share = Annotated[float, Field(ge=0, lt=1)]


class SpikingConfig(ConfigPart):
    """Parameters of the spiking neurons."""

    neurons: PositiveInt = Field(32, description="of each spiking layer")
    decay: Annotated[float, Field(gt=0, lt=1)] = searchable(
        0.9, low=0.5, high=0.99, description="what a step leaves of a membrane's potential"
    )
    threshold: PositiveFloat = searchable(1.0, low=0.25, high=2.0, description="where a neuron spikes")
    slope: PositiveFloat = searchable(
        4.0, low=1.0, high=50.0, log=True, description="of the surrogate derivative of a spike"
    )
    surrogate: Literal["atan", "fast_sigmoid"] = Field("atan", description="derivative of a spike")
    learn_decay: bool = Field(True, description="each neuron learns its decay")
    learn_threshold: bool = Field(False, description="each neuron learns its threshold")
    rate_weight: NonNegativeFloat = Field(0.0, description="of what holds rates between lowest_rate and highest_rate")
    lowest_rate: Share = Field(0.02, description="spikes of a layer per neuron and step, at least")
    highest_rate: Share = Field(0.5, description="the same at most")

    @model_validator(mode="after")
    def _check_rates(self) -> "SpikingConfig":
        if self.lowest_rate > self.highest_rate:
            raise ValueError(
                f"must have a lowest_rate of at most its highest_rate, {self.highest_rate}, but got "
                f"{self.lowest_rate}. Lower it."
            )
        return self


RULES = ["pair", "triplet", "homeostatic", "bcm"]
PLASTIC = {"plasticity.rule": RULES}


class PlasticityConfig(ConfigPart):
    """Parameters of synapses that follow a local rule, in addition to those that follow the gradient."""

    rule: Literal["none", "pair", "triplet", "homeostatic", "bcm"] = searchable(
        "none", choices=["none", *RULES], description="what changes plastic synapses; none: there are none"
    )
    rate: PositiveFloat = searchable(
        1.0, low=0.01, high=100.0, log=True, when=PLASTIC, description="factor of the rule's change in each update"
    )
    tau: PositiveFloat = Field(20.0, description="steps that the traces of spikes last")
    target_rate: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="spikes per step that the homeostatic rule and BCM aim at"
    )
    homeostasis: NonNegativeFloat = Field(
        0.2, description="of rule homeostatic: inhibition that an update adds for each spike per step above target_rate"
    )
    stiffness: NonNegativeFloat = Field(0.0, description="how much strong synapses resist weakening; 0: not at all")
    meta: bool = Field(False, description="learn the rates of the rule from how the loss follows its last change")
    meta_lr: PositiveFloat = Field(0.01, description="learning rate of these rates")


class ContinualConfig(ConfigPart):
    """Parameters of the stream of tasks."""

    tasks: PositiveInt = Field(5, description="learned one after another; 1: all at once")
    scenario: Scenario = Field(
        "class", description="of labels: is the task of a sample known (task), unasked (domain), or asked too (class)"
    )


class ConsolidationConfig(ConfigPart):
    """Parameters of the penalty that keeps weights that earlier tasks need."""

    method: Literal["none", "ewc", "si"] = searchable(
        "none", choices=["none", "ewc", "si"], description="elastic weight consolidation or synaptic intelligence"
    )
    ewc_strength: NonNegativeFloat = searchable(
        1e3, low=1.0, high=1e8, log=True, when={"consolidation.method": "ewc"}, description="of that penalty"
    )
    si_strength: NonNegativeFloat = searchable(
        10.0, low=1e-2, high=1e5, log=True, when={"consolidation.method": "si"}, description="of that penalty"
    )
    decay: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="what a task leaves of earlier Fishers")
    fisher_samples: PositiveInt = Field(512, description="sequences of a task that its Fisher is measured on")


class ReplayConfig(ConfigPart):
    """Parameters of the replay of samples of earlier tasks in every window."""

    fraction: Share = searchable(0.5, low=0.0, high=0.8, description="of a micro-batch that is replayed")
    size: PositiveInt = searchable(100, low=20, high=1000, log=True, description="samples that are remembered")
    balanced: bool = Field(True, description="as many of each earlier task; else as they come")
    logits_weight: NonNegativeFloat = searchable(
        0.0, low=0.0, high=1.0, description="of staying with what was answered to them then (DER++)"
    )


class LiquidConfig(TaskConfig):
    """Parameters of the task `liquid`. Where a range has a source, docs/liquid.md names it."""

    lr: PositiveFloat = searchable(1e-2, low=1e-3, high=3e-2, log=True, description="peak learning rate")
    width: PositiveInt = searchable(32, choices=[16, 32, 64], description="features of the residual stream")
    cell: Literal["cfc", "liquid", "ncp", "ltc"] = searchable(
        "cfc", choices=["cfc", "liquid", "ncp"], description="ltc is the slow reference"
    )
    accumulation: PositiveInt = searchable(1, choices=[1, 2, 4], description="micro-batches per optimizer update")
    epochs: PositiveInt = Field(15, description="of all tasks of the stream together")
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        0.98, description="average the weights for evaluation; none: do not"
    )
    data: str = Field("digits", description="digits, text, series, or a folder: of text by domain, or of IDX files")
    length: Annotated[int, Field(ge=1, le=8192)] = Field(128, description="steps of a sequence of bytes or values")
    samples: PositiveInt = Field(512, description="sequences in an epoch, at most")
    test_samples: PositiveInt = Field(400, description="sequences that each domain is tested on, at most")
    batch_size: PositiveInt = Field(16, description="sequences of a micro-batch, without those that are replayed")
    layers: PositiveInt = Field(1, description="blocks")
    units: Annotated[int, Field(ge=3)] = Field(32, description="of each liquid cell")  # an NCP has three layers
    dropout: Share = Field(0.0, description="of what a block adds")
    weight_decay: NonNegativeFloat = Field(0.01, description="of matrices")
    warmup: Annotated[float, Field(ge=0, le=1)] = Field(0.02, description="share of the updates before the peak rate")
    schedule: Literal["constant", "cosine"] = Field("constant", description="of the learning rate after that")
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
