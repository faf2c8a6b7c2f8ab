"""The parameters of the task `arc`, their ranges, and the sources of these."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from searchlight.models.arc.prompt import HUB_ID
from searchlight.models.arc.puzzles import SOURCES
from searchlight.trainables.arc import data
from searchlight.trainables.task import TaskConfig, searchable
from searchlight.trainables.task.config import ConfigPart

Share = Annotated[float, Field(ge=0, le=1)]


class PromptConfig(ConfigPart):
    """The prompt encoder: `--set prompt.model=Qwen/Qwen2.5-1.5B`."""

    _gone: ClassVar = {"fuse": "gate", "prefix": ...}

    model: str | None = Field(
        None, description="causal language model, a folder or an id of the hub; none: a tiny random one"
    )
    revision: str | None = Field(None, description="of a model of the hub; none: its newest")
    train: Literal["frozen", "full"] = Field(
        "frozen", description="what of the language model learns: nothing, or all of it"
    )
    text: Literal["rule", "grids"] = Field(
        "rule", description="what it reads: a sentence about the demonstrations, or their grids as digits"
    )
    dim: int = Field(256, ge=1, le=4096, description="entries of a prompt")
    max_tokens: int = Field(256, ge=1, description="of a text that is read; the rest is cut off")
    cache: str | None = Field(None, description="folder that keeps a frozen model's vectors; none: memory alone")

    # Each says what is wrong with its own field, so that all mistakes are told at once; those before it are known.

    @field_validator("model")
    @classmethod
    def _resolve_model(cls, model: str | None) -> str | None:
        """Return a folder as an absolute path, since workers run elsewhere. Return an id of the hub unchanged."""
        if model is None:
            return None
        folder = Path(model).expanduser()
        if not (folder.is_dir() or folder.is_absolute() or model[:1] in ".~" or not HUB_ID.fullmatch(model)):
            return model
        if not (folder.absolute() / "config.json").is_file():
            raise ValueError(
                f"must be a folder with a model or an id of the hub, but got {model}: there is no "
                f"{folder.absolute() / 'config.json'}. Save a model there with save_pretrained."
            )
        return str(folder.absolute())

    @field_validator("revision")
    @classmethod
    def _check_revision(cls, revision: str | None, info: ValidationInfo) -> str | None:
        model = info.data.get("model", "")
        if revision is not None and (model is None or Path(model).is_absolute()):
            raise ValueError(
                f"must be none where prompt.model is {'none' if model is None else 'a folder'}, but got {revision}. "
                "Only a model of the hub has revisions."
            )
        return revision

    @field_validator("cache")
    @classmethod
    def _resolve_cache(cls, cache: str | None, info: ValidationInfo) -> str | None:
        if cache is None:
            return None
        if info.data.get("train", "frozen") != "frozen":
            raise ValueError(
                f"must be none with prompt.train={info.data['train']}, but got {cache}: vectors that change cannot be "
                "kept. Drop one of them."
            )
        folder = Path(cache).expanduser().absolute()
        if not cache or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"must be a folder, but got {cache!r}. Choose one: it need not exist.")
        return str(folder)


PROMPTED = {"use_prompt": True}
REFINED = {"use_policy": True}
REWARDED = REFINED | {"advantage_normalization": False}  # normalized, they have no scale


class ArcConfig(TaskConfig):
    """Parameters of the task `arc`. docs/arc.md gives the sources of ranges."""

    _gone: ClassVar = {"adaptation_steps": 0, "adaptation_lr": ...}

    agent_lr: PositiveFloat = searchable(
        4e-3, low=3e-5, high=3e-1, log=True, description="peak learning rate of the agent"
    )
    prompt_lr: PositiveFloat = searchable(
        1e-3, low=1e-4, high=1e-2, log=True, when=PROMPTED, description="that of the prompt encoder"
    )
    policy_lr: PositiveFloat = searchable(
        1e-3, low=1e-4, high=1e-2, log=True, when=REFINED, description="that of the policy"
    )
    reward_scale: NonNegativeFloat = searchable(
        5.0, low=0.5, high=20.0, log=True, when=REWARDED, description="factor of the policy's rewards"
    )
    policy_scale: PositiveFloat = searchable(
        4.0, low=1.0, high=16.0, log=True, when=REFINED, description="most that the policy changes a trust by, in nats"
    )
    policy_sigma: Annotated[float, Field(gt=0.007, lt=1.6)] = searchable(
        0.5, low=0.1, high=1.5, log=True, when=REFINED, description="spread that the policy begins with"
    )
    size_weight: Share = searchable(0.2, low=0.05, high=0.5, description="share of the loss of sizes")
    hard_cell_floor: Annotated[float, Field(gt=0, le=1)] = searchable(
        0.5, low=0.1, high=1.0, description="weight of a cell that is surely right, beside 1 for one that is wrong"
    )
    ambiguity_weight: NonNegativeFloat = searchable(
        0.02, low=0.0, high=0.1, description="of the entropy of the answer's cells"
    )
    consistency_weight: NonNegativeFloat = searchable(
        0.1, low=0.0, high=1.0, description="of the divergence between refinement steps"
    )
    pathwise_weight: NonNegativeFloat = searchable(
        1.0,
        low=0.0,
        high=2.0,
        when=REFINED,
        description="of the answers' loss in the policy's, through the sampled prompts",
    )
    information_weight: NonNegativeFloat = searchable(
        0.05, low=0.0, high=0.3, when=REFINED, description="of the information gain of the policy's samples"
    )
    accumulation: PositiveInt = searchable(1, choices=[1, 2, 4], description="micro-batches per optimizer update")
    steps: PositiveInt = searchable(2, low=1, high=3, description="refinement steps, a loss at each")

    prompt: PromptConfig = PromptConfig()
    use_prompt: bool = Field(True, description="whether there is a prompt; without one there is no policy either")
    curriculum_start: Share = Field(
        0.0, description="share of puzzles picked by difficulty in the first epoch; 0 in the last"
    )
    use_policy: bool = Field(False, description="whether a policy changes the trust in hypotheses")
    samples: int = Field(4, ge=2, le=64, description="changes that the policy tries per puzzle in training")
    candidates: int = Field(3, ge=1, le=64, description="changes per puzzle in evaluation, ranked by free energy")
    least_spread: Share = Field(
        0.05, description="share of puzzles with a spread of rewards, below which the policy does not train"
    )
    rehearsals: int = Field(
        2, ge=0, le=10, description="demonstrations held out of each puzzle, to rank candidates by and for the score"
    )
    selection_precision: float = Field(
        200.0, ge=0, description="how sharply the expected free energy chooses among candidates"
    )
    advantage_normalization: bool = Field(
        False, description="divide advantages by their spread: reward_scale then has no effect"
    )
    entropy_weight: float = Field(0.01, ge=0, description="of the policy's entropy")
    kl_weight: float = Field(0.01, ge=0, description="of its divergence from the distribution that it began with")
    ambiguity_warmup: float = Field(0.2, ge=0, le=1, description="share of all updates in which that term rises from 0")
    weight_decay: float = Field(0.05, ge=0, description="of agent and prompt encoder")
    dropout: float = Field(0.0, ge=0, lt=1)
    batch_size: int = Field(8, ge=1, description="episodes per micro-batch")
    width: int = Field(32, ge=2, le=512, description="features per cell")
    layers: int = Field(3, ge=0, le=16, description="blocks that read the grids")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of all updates in which the learning rate rises")
    episodes: int = Field(400, ge=1, description="training episodes per epoch, over all workers")
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

    # Each says what is wrong with its own field, so that all mistakes are told at once; those before it are known.

    @field_validator("use_policy")
    @classmethod
    def _check_use_policy(cls, use_policy: bool, info: ValidationInfo) -> bool:
        if use_policy and not info.data.get("use_prompt", True):
            raise ValueError("must be false with use_prompt=false, but got true: a policy looks at a prompt.")
        return use_policy

    @field_validator("data", "evaluation_data")
    @classmethod
    def _resolve_source(cls, source: str | None) -> str | None:
        """Return a folder as an absolute path, since workers run in another folder."""
        if source is None or source in SOURCES:
            return source
        folder = Path(source).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(
                f"must be {', '.join(SOURCES)}, or a folder of puzzles, but got {source}: there is no folder {folder}."
            )
        return str(folder)

    @field_validator("leak")
    @classmethod
    def _check_leak(cls, leak: str, info: ValidationInfo) -> str:
        """Check that no training puzzle is evaluated on. The fields before this one define both sets."""
        names = ("data", "evaluation_data", "max_side", "learn_from")
        if all(name in info.data for name in names):
            data.check(*(info.data[name] for name in names), leak)
        return leak
