"""The parameters of the task `arc`, their ranges, and the sources of these."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
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
    dim: int = Field(32, ge=1, le=4096, description="entries of a prompt")
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


class ArcConfig(TaskConfig):
    """Parameters of the task `arc`. docs/development/arc.md gives the sources of defaults and ranges."""

    policy_lr: PositiveFloat = searchable(
        5e-5, low=1e-5, high=3e-2, log=True, description="peak learning rate of the policy"
    )
    prompt_lr: PositiveFloat = searchable(
        5e-5, low=1e-5, high=1e-2, log=True, when={"use_prompt": True}, description="that of the prompt encoder"
    )
    reward_scale: NonNegativeFloat = searchable(
        5.0, low=0.02, high=20.0, log=True, description="factor of rewards, beside the entropy"
    )
    curriculum: Share = searchable(
        0.6, low=0.0, high=0.9, description="share of puzzles picked by difficulty in the first epoch; half in the last"
    )

    entropy_weight: NonNegativeFloat = Field(0.01, description="of the policy's entropy, in nats")
    samples: int = Field(8, ge=2, le=512, description="programs that the policy tries per puzzle in training")
    programs: int = Field(64, ge=1, description="programs per puzzle that answer its tests")
    width: int = Field(128, ge=2, le=4096, description="hidden units of the policy")
    dropout: float = Field(0.3, ge=0, lt=1, description="of statistics and hidden units")
    batch_size: int = Field(32, ge=1, description="puzzles per micro-batch")
    episodes: int = Field(1024, ge=1, description="puzzles per epoch, over all workers")
    use_prompt: bool = Field(False, description="whether the policy sees what a language model reads")
    prompt: PromptConfig = PromptConfig()
    data: str = Field("arc-agi-1", description=f"puzzles: {', '.join(SOURCES)}, or a folder of them")
    evaluation_data: str | None = Field(None, description="puzzles to evaluate on; none: those of `data`")
    max_side: int = Field(12, ge=1, le=30, description="puzzles with a longer grid side are left out")
    leak: Literal["refuse", "drop", "allow"] = Field(
        "refuse", description="training puzzles that are evaluated on: an error, left out, or trained on"
    )

    # Each says what is wrong with its own field, so that all mistakes are told at once; those before it are known.

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
        names = ("data", "evaluation_data", "max_side")
        if all(name in info.data for name in names):
            data.check(*(info.data[name] for name in names), leak)
        return leak
