"""Hugging Face's Trainer fine-tunes a text classifier, with a tokenizer and a metric, in a function of Ray Train.

Each trial resumes from its own checkpoint, although the callback looks for files in the current folder. Replace what
`load` makes by `from_pretrained` of a folder that all workers see. The texts are paragraphs of Python's manual.

    searchlight run examples/huggingface.py:train_fn --objective eval_accuracy:max \
        --search lr=1e-3..3e-2:log --search warmup_steps=0..50 --set epochs=9

With --trials 6 --concurrency 1, on CPUs, it printed:

    1 completed, 5 pruned in 1:04
    best: trial 0, eval_accuracy 0.7979 estimated over 2 new seeds, 90 % interval 0.7137 to 0.8821
"""

import os
from pydoc_data.topics import topics

import ray.train
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

LABELS = ["specialnames", "compound", "types", "debugger"]  # the page of the manual


def load(texts):
    """Return a small model with random weights, and a tokenizer that is made of `texts`."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[PAD]", "[UNK]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=2000, num_labels=len(LABELS), max_position_embeddings=32, **sizes)
    return BertForSequenceClassification(config), tokenizer


def compute_metrics(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def train_fn(config):
    pairs = [(text, label) for label, page in enumerate(LABELS) for text in topics[page].split("\n\n")]
    model, tokenizer = load([text for text, _ in pairs])
    rows = [{**tokenizer(text, truncation=True, max_length=32), "labels": label} for text, label in pairs]
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=config["epochs"],
        learning_rate=config["lr"],
        warmup_steps=config["warmup_steps"],
        per_device_train_batch_size=32,
        eval_strategy="epoch",
        save_strategy="epoch",
        seed=config["seed"],  # else each confirming run would have the same one
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=[row for index, row in enumerate(rows) if index % 4],
        eval_dataset=rows[::4],
        compute_metrics=compute_metrics,
        callbacks=[RayTrainReportCallback()],
    )
    trainer = prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.train()
    else:
        with checkpoint.as_directory() as folder:
            trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint"))
