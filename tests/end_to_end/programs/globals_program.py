"""Has its parameters in globals, which --name=value replaces. It has no help, and continues with --init_from=resume."""

import sys
from ast import literal_eval
from pathlib import Path

learning_rate = 1e-3
init_from = "scratch"
out_dir = "out"
for argument in sys.argv[1:]:
    name, _, text = argument.removeprefix("--").partition("=")
    assert name in globals(), name
    globals()[name] = text if name in ("init_from", "out_dir") else literal_eval(text)
Path(out_dir).mkdir(exist_ok=True)
checkpoint = Path(out_dir, "ckpt.txt")
begin = int(checkpoint.read_text()) if init_from == "resume" else 0
print("begins after", begin, flush=True)
for iteration in range(begin + 1, 5):
    print(f"step {iteration * 250}: train loss 9.9, score {learning_rate + 1 / iteration}", flush=True)
    checkpoint.write_text(str(iteration))
print("after training")
