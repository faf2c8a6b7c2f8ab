"""Trains on several processes, and continues from the snapshot that is in the folder in which it runs."""

import sys
from pathlib import Path

import torch
from torch import distributed

LEARNING_RATE = 1e-3
distributed.init_process_group("gloo")
rank, snapshot = distributed.get_rank(), Path("snapshot.pt")
begin = torch.load(snapshot) if snapshot.exists() else 0
print(f"[{rank}] begins after {begin}", flush=True)
for epoch in range(begin + 1, int(sys.argv[1]) + 1):
    score = torch.tensor(LEARNING_RATE)
    distributed.all_reduce(score)
    print(f"[{rank}] epoch {epoch} score {score.item() / distributed.get_world_size() + 1 / epoch}", flush=True)
    if rank == 0:
        torch.save(epoch, snapshot)
distributed.barrier()
distributed.destroy_process_group()
if rank == 0:
    print("after training")
