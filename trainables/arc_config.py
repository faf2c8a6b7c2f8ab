"""The parameters of the task `arc`, what a search varies of them, and where they come from."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from models.arc import SOURCES, check_disjoint, load_puzzles
from trainables.precision import Precision
from trainables.task import TaskConfig, searchable


class PromptConfig(BaseModel):
    """The prompt encoder: `--set prompt.model=Qwen/Qwen2.5-1.5B`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    model: str | None = Field(
        None, min_length=1, description="causal language model, a folder or an id of the hub; none: a tiny random one"
    )
    revision: str | None = Field(None, description="of a model of the hub; none: its newest")
    train: Literal["frozen", "prefix", "full"] = Field(
        "frozen", description="what of the language model learns: nothing, a soft prefix, or all of it"
    )
    text: Literal["rule", "grids"] = Field(
        "rule", description="what it reads: a sentence about the demonstrations, or their grids as digits"
    )
    fuse: Literal["gate", "concat", "mean"] = Field("gate", description="how its vector meets the 15 features")
    dim: int = Field(256, ge=1, le=4096, description="entries of a prompt")
    prefix: int = Field(8, ge=1, le=256, description="vectors of the soft prefix, where that learns")
    max_tokens: int = Field(256, ge=1, description="of a text that is read; the rest is cut off")
    cache: str | None = Field(None, description="folder that keeps a frozen model's vectors; none: memory alone")

    @field_validator("model", "cache")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        """Workers run in a folder of their own. What is no folder is an id of the hub."""
        if path is None:
            return None
        folder = Path(path).expanduser()
        return str(folder.absolute()) if folder.is_dir() or folder.is_absolute() or path[:1] in ".~" else path

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if (
            self.model is not None
            and Path(self.model).is_absolute()
            and not (Path(self.model) / "config.json").is_file()
        ):
            raise ValueError(
                f"prompt.model must be a folder with a model, but there is no {Path(self.model) / 'config.json'}. "
                "Save it there with save_pretrained, or give an id of the hub."
            )
        if self.cache is not None and self.train != "frozen":
            raise ValueError(
                f"prompt.cache must be none where the encoder learns, but got {self.cache} and prompt.train="
                f"{self.train}: vectors that change cannot be kept. Drop one of them."
            )
        return self


class ArcConfig(TaskConfig):
    """Parameters of the task `arc`. Where a range has a source, docs/arc.md names it."""

    agent_lr: float = searchable(6e-3, low=1e-3, high=2e-2, log=True, description="peak learning rate of the agent")
    prompt_lr: float = searchable(1e-3, low=1e-4, high=1e-2, log=True, description="that of the prompt encoder")
    policy_lr: float = searchable(1e-3, low=1e-4, high=1e-2, log=True, description="that of the policy")
    reward_scale: float = searchable(5.0, low=0.5, high=20.0, log=True, description="factor of the policy's rewards")
    curriculum_start: float = searchable(
        0.3, low=0.0, high=0.9, description="share of easy puzzles, and of the loss of sizes, in the first epoch"
    )
    curriculum_end: float = searchable(0.0, low=0.0, high=0.5, description="that share after the warm-up")
    curriculum_warmup: int = searchable(3, low=1, high=5, description="epochs from the first share to the last")
    hard_cell_floor: float = searchable(
        0.5, low=0.1, high=1.0, description="weight of a cell that is surely right, beside 1 for one that is wrong"
    )
    ambiguity_weight: float = searchable(0.02, low=0.0, high=0.1, description="of the entropy of the answer's cells")
    consistency_weight: float = searchable(
        0.1, low=0.0, high=1.0, description="of the divergence between refinement steps"
    )
    pathwise_weight: float = searchable(
        1.0, low=0.0, high=2.0, description="of the agent's loss in the policy's, through the sampled prompt"
    )
    information_weight: float = searchable(
        0.05, low=0.0, high=0.3, description="of the information gain of the policy's samples"
    )
    accumulation: int = searchable(1, choices=[1, 2, 4], description="micro-batches per optimizer update")
    precision: Literal["fp32", "bf16", "fp16", "auto"] = searchable(
        Precision.FP32, choices=list(Precision), description="format of the forward pass; auto: the best of the device"
    )
    steps: int = searchable(2, low=1, high=4, description="refinement steps, a loss at each")

    prompt: PromptConfig = PromptConfig()
    use_prompt: bool = Field(True, description="whether there is a prompt; without one there is no policy either")
    use_policy: bool = Field(True, description="whether a policy refines the prompt")
    samples: int = Field(4, ge=1, le=64, description="prompts that the policy tries per puzzle in training")
    candidates: int = Field(3, ge=1, le=64, description="prompts per puzzle in evaluation, ranked by free energy")
    rehearsals: int = Field(1, ge=0, le=10, description="demonstrations held out of each puzzle to rank candidates by")
    selection_precision: float = Field(
        16.0, ge=0, description="how sharply the expected free energy chooses among candidates"
    )
    advantage_normalization: bool = Field(
        False, description="divide advantages by their spread: reward_scale then has no effect"
    )
    value_weight: float = Field(0.5, gt=0, description="of the value's loss")
    entropy_weight: float = Field(0.01, ge=0, description="of the policy's entropy")
    kl_weight: float = Field(0.01, ge=0, description="of its divergence from the distribution that it began with")
    ambiguity_warmup: float = Field(0.2, ge=0, le=1, description="share of all updates in which that term rises from 0")
    weight_decay: float = Field(0.05, ge=0, description="of agent and prompt encoder")
    dropout: float = Field(0.0, ge=0, lt=1)
    batch_size: int = Field(8, ge=1, description="episodes per micro-batch")
    width: int = Field(32, ge=1, le=512, description="features per cell")
    layers: int = Field(3, ge=0, le=16, description="blocks that read the grids")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of all updates in which the learning rate rises")
    episodes: int = Field(800, ge=1, description="training episodes per epoch, over all workers")
    views: int = Field(2, ge=1, le=80, description="augmented views of a test that vote for its answer")
    max_demos: int = Field(3, ge=1, le=10, description="demonstrations shown in a training episode")
    max_side: int = Field(12, ge=1, le=30, description="puzzles with a longer grid side are left out")
    data: str = Field("arc-agi-1", description=f"puzzles: {', '.join(SOURCES)}, or a folder of them")
    evaluation_data: str | None = Field(None, description="puzzles to evaluate on; none: those of `data`")
    learn_from: Literal["demonstrations", "pairs", "transductive"] = Field(
        "demonstrations",
        description="of the training puzzles, their demonstrations, or their tests too; transductive: "
        "demonstrations of the evaluation puzzles besides",
    )
    leak: Literal["refuse", "drop", "allow"] = Field(
        "refuse", description="training puzzles that are evaluated on: an error, left out, or trained on"
    )
    ema_decay: float | None = Field(0.99, gt=0, lt=1, description="average the weights for evaluation; none: do not")

    @field_validator("data", "evaluation_data")
    @classmethod
    def _source(cls, source: str | None) -> str | None:
        """Workers run in a folder of their own."""
        if source is None or source in SOURCES:
            return source
        folder = Path(source).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(
                f"data must be {', '.join(SOURCES)}, or a folder of puzzles, but there is no folder {folder}."
            )
        return str(folder)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.use_policy and not self.use_prompt:
            raise ValueError(
                "use_policy must be false where use_prompt is, since a policy refines a prompt, but got true."
            )
        if self.advantage_normalization and self.samples < 2:
            raise ValueError(
                f"samples must be at least 2 with advantage_normalization, but got {self.samples}: one has no spread."
            )
        self._check_data()
        return self

    def _check_data(self) -> None:
        """Before a search begins; what comes with the package is known to be right."""
        if self.evaluation_data is None and self.data in SOURCES:
            return
        training = load_puzzles(self.data, "training", self.max_side)
        evaluation = load_puzzles(self.evaluation_data or self.data, "evaluation", self.max_side)
        if self.leak == "refuse":
            check_disjoint(training, evaluation)
