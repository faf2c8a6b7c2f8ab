"""Two processes, or four, in one process group over gloo, in which tests run what a rank would."""

import multiprocessing
import multiprocessing.connection
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

RANKS = 2
LIMIT = 600.0  # seconds for one call on all ranks, after which they hang, also on a busy machine


def _serve(rank: int, count: int, store: str, pipe: Any) -> None:
    """Run what comes through `pipe` and send back what it returns, or its traceback."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=count, timeout=limit)
    while True:
        function, arguments = pipe.recv()
        try:
            answer = (True, function(rank, *arguments))
        except BaseException:  # whatever it is, the other side is told and shows it
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


class Pair:
    """`count` processes in one process group, started once; those that fail or hang are replaced."""

    def __init__(self, folder: Path, count: int = RANKS) -> None:
        self.folder = folder
        self.count = count
        self.processes: list[Any] = []
        self.pipes: list[Any] = []
        self.starts = 0

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(rank, *arguments)` returns on each rank."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        try:
            return self.answers(time.monotonic() + LIMIT)
        except BaseException:  # the processes may be stuck: the next test gets new ones
            self.end()
            raise

    def answers(self, deadline: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < self.count:
            waiting = [rank for rank in range(self.count) if rank not in answers]
            pipes = [self.pipes[rank] for rank in waiting]
            ready = multiprocessing.connection.wait(pipes, max(0.0, deadline - time.monotonic()))
            if not ready:
                pytest.fail(f"no answer from ranks {waiting} within {LIMIT:g} s")
            for rank in waiting:
                if self.pipes[rank] not in ready:
                    continue
                try:
                    worked, answers[rank] = pickle.loads(self.pipes[rank].recv_bytes())
                except EOFError:
                    pytest.fail(f"rank {rank} ended with exit code {self.processes[rank].exitcode}")
                if not worked:
                    pytest.fail(f"rank {rank} raised:\n{answers[rank]}")
        return [answers[rank] for rank in range(self.count)]

    def start(self) -> None:
        # A server that has imported what takes long forks the ranks, and those that replace them.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["torch._dynamo", "hypothesis", "tests.trainables.toy_models", __name__])
        self.starts += 1
        for rank in range(self.count):
            ours, theirs = server.Pipe()
            store = str(self.folder / f"store-{self.starts}")
            process = server.Process(target=_serve, args=(rank, self.count, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []
