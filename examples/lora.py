"""LoRA adapters (PEFT) for a causal language model: rank, scale and learning rate are searched together.

Without --model, a small model with random weights is made, so that nothing is downloaded. The text is Python's manual.

searchlight run --search lr=1e-4..1e-1:log --search rank=2..32:log --search alpha=4..64:log --set epochs=4 --trials 12 \
    --objective eval_loss:min -- python examples/lora.py --seed {seed}

With --trials 6 --concurrency 1, on CPUs, it printed:

    4 completed, 2 pruned in 1:34
    best: trial 2, eval_loss 3.066 estimated over 2 new seeds, 90 % interval 2.645 to 3.463
      trial 2 beats the defaults by 2.29 (90 % interval 1.89 to 2.68, 2 seeds)
"""

import argparse
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Trainer, TrainingArguments

LENGTH = 64  # tokens of a sample
ADAPTED = ["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"]


def load(folder):
    """Return a model, and a function that turns a text into tokens. Without a folder, tokens are bytes."""
    if folder:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder), lambda text: tokenizer(text)["input_ids"]
    torch.manual_seed(0)  # as if these were the weights of a file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=256, **sizes)), lambda text: list(text.encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder with a model and its tokenizer")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    model, tokenize = load(args.model)
    tokens = tokenize("\n".join(topics[name] for name in sorted(topics)))[: 320 * LENGTH]
    samples = [{"input_ids": some, "labels": some} for some in torch.tensor(tokens).split(LENGTH)]
    torch.manual_seed(args.seed)
    adapters = LoraConfig(r=args.rank, lora_alpha=args.alpha, target_modules=ADAPTED, task_type="CAUSAL_LM")
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=args.epochs,
        learning_rate=args.lr,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
    )
    Trainer(get_peft_model(model, adapters), arguments, train_dataset=samples[64:], eval_dataset=samples[:64]).train()


if __name__ == "__main__":
    main()
