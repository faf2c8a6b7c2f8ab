"""The process group of a gang on one machine listens at the loopback address, and that of one worker has no store."""

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection

import psutil
import pytest
import torch
import torch.distributed as dist

from searchlight.trainables.ports import find_free_ports
from searchlight.trainables.worker import process_group
from searchlight.trainables.worker.process_group import find_interface, join_group, open_store


def join_as(rank: int, size: int, pipe: Connection) -> None:
    """Create a group in this process, and send the sum of all ranks and the addresses at which it listens."""
    os.environ.pop("GLOO_SOCKET_IFNAME", None)
    if rank == 0:
        pipe.send(open_store("127.0.0.1", 60) if size > 1 else find_free_ports()[0])
    port = pipe.recv()
    join_group("gloo", "127.0.0.1", port, rank, size, 60)
    numbers = torch.ones(1)
    dist.all_reduce(numbers, group=dist.new_group([*range(size)]))
    sockets = psutil.Process().net_connections("inet")
    listening = [(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN]
    pipe.send((numbers.item(), port, listening, os.environ["GLOO_SOCKET_IFNAME"], os.environ["MASTER_PORT"]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
def test_group_on_one_machine_is_not_reached_from_another(size):
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [context.Process(target=join_as, args=(rank, size, pipes[rank][1])) for rank in range(size)]
    for rank in ranks:
        rank.start()
    port = pipes[0][0].recv()
    for pipe, _ in pipes:
        pipe.send(port)
    for rank, (pipe, _) in enumerate(pipes):
        total, told, listening, interface, variable = pipe.recv()
        assert (total, told, variable, interface) == (size, port, str(port), "lo")
        assert {ip for ip, _ in listening} == {"127.0.0.1"}
        assert (port in [number for _, number in listening]) == (rank == 0 and size > 1)
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0


def test_interface_is_the_one_that_reaches_the_address():
    found = psutil.net_if_addrs()
    addresses = {each.address: name for name in found for each in found[name] if each.family == socket.AF_INET}
    assert addresses["127.0.0.1"].startswith("lo")
    assert {address: find_interface(address) for address in addresses} == addresses


def test_gloo_uses_the_interface_of_the_gang_unless_the_user_names_one(monkeypatch):
    monkeypatch.setattr(process_group, "find_interface", {"10.0.0.1": "eth7"}.get)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # restored at the end
    for given in ("", "eth1"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", given)
        if not given:
            monkeypatch.delenv("GLOO_SOCKET_IFNAME")
        join_group("gloo", "10.0.0.1", 5, 1, 2, 60)
        assert os.environ["GLOO_SOCKET_IFNAME"] == (given or "eth7")
