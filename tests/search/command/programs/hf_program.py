import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from transformers.hf_argparser import HfArgumentParser


@dataclass
class ModelArguments:
    model_name: str = field(metadata={"help": "the model, --x"})
    learning_rate: float = field(default=5e-05, metadata={"help": "The initial learning rate."})
    kind: Literal["a", "b"] = "a"
    fp16: bool = False
    use_fast: bool = True


print(json.dumps(asdict(HfArgumentParser((ModelArguments,)).parse_args_into_dataclasses()[0])))
