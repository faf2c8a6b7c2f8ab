"""Causal language models that turn a text into a vector: a tiny one with random weights, or a real one.

The tiny one needs no download and no tokenizer. Its random weights map the letters of a text to a vector, which is the
same in all processes. A trained projection learns to use this vector.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from searchlight.models.arc.prompt.revision import hash_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY = "tiny"
TINY_REVISION = "tiny-1"
TINY_VOCABULARY = 128
MAX_TOKENS = 1024
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


logger = logging.getLogger(__name__)


class LanguageModel(nn.Module):
    """A causal language model that is read by the mean of its last hidden state.

    Args:
        model: A transformers model without a head.
        tokenizer: The tokenizer of the model. None: the bytes of ASCII texts are the tokens.
        name: The folder or id that the model was loaded from.
        revision: The version of the model. The same name and revision give the same vectors.
        trainable: Whether the weights are trained. A frozen model keeps its dtype, also under autocast, and stays in
            evaluation mode.
        max_tokens: The largest number of tokens of a text. The rest is cut off.

    Attributes:
        hidden: The length of a text's vector.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase | None",
        name: str,
        revision: str,
        trainable: bool,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.name, self.revision = name, revision
        self.trainable, self.max_tokens = trainable, max_tokens
        self.hidden = int(model.config.get_text_config().hidden_size)
        self.requires_grad_(trainable)
        self.train(trainable)

    def train(self, mode: bool = True) -> "LanguageModel":
        """Set the mode of a trainable model. A frozen model stays in evaluation mode."""
        super().train(mode and self.trainable)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of its weights."""
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return the token ids of each text, int64 of shape (N, L) on the CPU, -1 behind a shorter text.

        Raises:
            ValueError: A text has no token.
        """
        # One by one: tokenizers that have worked on several texts at once warn when the process forks later.
        whole = [self._encode(text) for text in texts]
        cut = sum(len(row) > self.max_tokens for row in whole)
        if cut:
            logger.warning(
                "max_tokens=%d cuts off %d of %d texts (%.0f %%). Raise it.",
                self.max_tokens,
                cut,
                len(whole),
                100 * cut / len(whole),
            )
        rows = [row[: self.max_tokens] for row in whole]
        for text, row in zip(texts, rows, strict=True):
            if not row:
                raise ValueError(f"texts must have a token each, but got {text!r}. Describe the puzzle in words.")
        ids = torch.full((len(rows), max(map(len, rows), default=0)), -1)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = torch.tensor(row)
        return ids

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return list(text.encode("ascii", errors="replace"))
        ids: list[int] = self.tokenizer(text, truncation=True, max_length=self.max_tokens + 1)["input_ids"]
        return ids

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of texts.

        Args:
            ids: Token ids as `tokenize` returns them, shape (N, L).

        Returns:
            The mean of the last hidden state over the tokens of the text, float32 of shape (N, hidden).
        """
        if self.trainable:
            return self._read(ids)
        # Vectors of frozen weights are kept, so they must not depend on who asks first, in which precision.
        with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
            return self._read(ids)

    def _read(self, ids: Tensor) -> Tensor:
        real = ids >= 0
        embedded = self.model.get_input_embeddings()(ids.clamp(min=0))
        read = self.model(inputs_embeds=embedded, attention_mask=real.long(), use_cache=False)
        total: Tensor = read.last_hidden_state.float().masked_fill(~real[:, :, None], 0.0).sum(1)
        return total / real.sum(1, keepdim=True)


def load_language_model(
    model: str | None = None, revision: str | None = None, trainable: bool = False, max_tokens: int = MAX_TOKENS
) -> LanguageModel:
    """Load a causal language model on the CPU, without output on the terminal.

    Args:
        model: The folder of a model, or an id on the Hugging Face hub. None: build a tiny Qwen2 with random weights.
        revision: A branch, tag or commit on the hub. None: the newest one, or the newest one in the cache if
            HF_HUB_OFFLINE is set.
        trainable: Whether to load the weights in float32 for training. Otherwise they are frozen in their own dtype.
        max_tokens: The largest number of tokens of a text. The rest is cut off.

    Raises:
        ValueError: The model does not exist, or has no weights or no tokenizer.
    """
    with _silence():
        if model is None:
            return LanguageModel(_build_tiny(), None, TINY, TINY_REVISION, trainable, max_tokens)

        is_folder = Path(model).is_dir()
        version = hash_folder(Path(model)) if is_folder else _resolve_commit(model, revision)
        loaded, tokenizer = _load(model, None if is_folder else version, trainable)
        longest = getattr(loaded.config.get_text_config(), "max_position_embeddings", max_tokens)
        return LanguageModel(loaded, tokenizer, model, version, trainable, min(max_tokens, longest))


def _build_tiny() -> "PreTrainedModel":
    # Imported in the loader: it takes seconds and 150 MB, which searches without a language model need not pay.
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config(
        vocab_size=TINY_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * MAX_TOKENS,
    )
    model = Qwen2Model(config)
    # Drawn here and not by transformers, whose order of drawing is its own affair.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                # The width's inverse root: smaller weights would leave a text's vector to its letters alone.
                weight.normal_(std=config.hidden_size**-0.5, generator=generator)
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def _load(model: str, revision: str | None, trainable: bool) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from transformers import AutoModel, AutoTokenizer

    dtype = torch.float32 if trainable else "auto"
    try:
        options: dict[str, Any] = {} if revision is None else {"revision": revision}
        loaded, found = AutoModel.from_pretrained(model, dtype=dtype, output_loading_info=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
    except Exception as error:  # transformers raises errors of nearly every type for files that hold no model
        raise ValueError(
            f"model must hold a language model and its tokenizer, but got {model!r}: {_get_first_line(error)}. "
            "Choose another, or download it again."
        ) from None
    # transformers draws missing weights at random, and only warns.
    lacking = sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]]))
    if lacking:
        raise ValueError(
            f"model must hold all weights, but {model!r} lacks {len(lacking)}, among them {lacking[0]}. "
            "Download it again."
        )
    # Where its files are missing, transformers makes a tokenizer that knows no word.
    if tokenizer("012")["input_ids"] == tokenizer("345")["input_ids"]:
        raise ValueError(f"model must hold a tokenizer, but got {model!r} without its files. Save it there as well.")
    return loaded, tokenizer


def _resolve_commit(model: str, revision: str | None) -> str:
    """Return the commit that a revision on the hub names now."""
    from transformers.utils import cached_file

    try:
        config = cached_file(model, "config.json", **({} if revision is None else {"revision": revision}))
    except OSError as error:
        raise ValueError(
            f"model must be a folder that exists or an id on the Hugging Face hub, but {model!r} cannot be had: "
            f"{_get_first_line(error)}. Correct it, or download the model where there is a network and give its folder."
        ) from None
    # .../snapshots/COMMIT/config.json
    return Path(str(config)).parent.name


def _get_first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress output on the terminal inside, and restore the global random state afterwards."""
    import warnings

    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    levels = logging.get_verbosity(), hub_logging.get_verbosity()
    bars, hub_bars = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(levels[0])
        hub_logging.set_verbosity(levels[1])
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()
