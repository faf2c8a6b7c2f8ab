from pathlib import Path

import pytest
import torch

from searchlight.models.arc.prompt import LanguageModel, load_language_model


@pytest.fixture(scope="package")
def tiny() -> LanguageModel:
    return load_language_model(None, None, trainable=False)


@pytest.fixture(scope="package")
def saved(tmp_path_factory) -> Path:
    """A folder with a small Qwen2 in bfloat16 and a tokenizer of letters, as save_pretrained writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "small"
    # Byte-level tokenizers write a blank as this letter.
    vocabulary = {chr(code).replace(" ", "\u0120"): code - 32 for code in range(32, 127)} | {"<|endoftext|>": 95}
    letters = Tokenizer(models.BPE(vocabulary, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|endoftext|>").save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
