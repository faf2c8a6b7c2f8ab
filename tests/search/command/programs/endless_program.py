"""Ignores all options, trains for ever, and writes beside itself."""

import threading

open("snapshot.pt", "w").close()
print("epoch 1: loss 0.5", flush=True)
threading.Event().wait()
