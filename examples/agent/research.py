"""A research loop, as an agent runs it: edits of a task, of which it keeps those that confirming runs show to help.

python examples/agent/research.py

The edits stand in this script. An agent would write them, and read the results by `searchlight mcp`.
"""

import json
from pathlib import Path

from searchlight import SearchConfig, run

HYPOTHESES = [  # why, and an edit of the task: the text to replace and the new one
    ("AdamW trains better than Adam", "torch.optim.Adam(", "torch.optim.AdamW("),
    (
        "the model is too small",
        "torch.nn.Linear(1, 1)",
        "torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))",
    ),
]


def search(name, text, earlier=()):
    """Search over the task that `text` is, and return the 90 % interval of what the confirmed config reaches."""
    file = Path(f"{name}.py")
    file.write_text(text)
    config = SearchConfig(
        task=f"{file}:Wave", name=name, trials=4, confirm=24, scheduler="asha", concurrency=1, warm_start=earlier,
        set={"precision": "fp32"},
    )  # fmt: skip
    result = run(config)
    (confirmation,) = result.as_json()["confirmations"]
    chosen = next(each for each in confirmation["configs"] if each["trial"] == confirmation["chosen"])
    return chosen["interval"]


def main():
    text = (Path(__file__).parent / "task.py").read_text()
    kept, (low, high), log = "base", search("base", text), []
    for number, (why, old, new) in enumerate(HYPOTHESES, start=1):
        name, edited = f"edit{number}", text.replace(old, new)
        found = search(name, edited, earlier=[kept])
        is_better = found[1] < low  # the whole interval is below: chance alone would show this seldom
        log.append({"why": why, "interval": found, "before": [low, high], "kept": is_better})
        if is_better:
            kept, text, (low, high) = name, edited, found
    print(json.dumps(log))


if __name__ == "__main__":
    main()
