"""Start Ray's actor that synchronizes ranks once a rank calls it, the same one for all ranks."""

import subprocess
import sys

CODE = """
import ray
from searchlight.trainables.worker.synchronization import SynchronizationOnDemand

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)


@ray.remote
class Rank:
    def meet(self, sync, rank, times):
        self.sync = sync  # as the context of a worker keeps it
        who = {"world_rank": rank, "world_size": 2, "data": f"of {rank}", "caller_method_name": "test"}
        return [ray.get(sync.broadcast_from_rank_zero.remote(**who, collective_seq=turn)) for turn in range(times)]


def find(sync):
    try:
        return ray.get_actor(sync._name)
    except ValueError:
        return None


ranks = [Rank.remote() for _ in range(2)]
met = []
for times in (1, 2, 3):
    sync = SynchronizationOnDemand.options(num_cpus=0).remote(timeout_s=600, warn_interval_s=60)
    before = find(sync)
    sync.kill()  # no actor, no error
    met.append([before, ray.get([rank.meet.remote(sync, number, times) for number, rank in enumerate(ranks)])])
    sync.kill()
    met[-1].append(find(sync))
print(met)
"""


def test_ranks_meet_in_one_actor_that_is_started_for_them(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    expected = [[None, [["of 0"] * times] * 2, None] for times in (1, 2, 3)]
    assert done.stdout.splitlines()[-1:] == [str(expected)], done.stderr
