"""The default process group of a gang's workers. A gang on one machine cannot be reached from another.

The functions import torch themselves, since the gang imports this module, too, and needs no torch.
"""

import gc
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from searchlight.trainables import private_api

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_stores: "list[Store]" = []  # of the group that this process serves


def set_environment() -> None:
    """Set the variables of `torchrun` in a worker of Ray Train, such as RANK.

    The import of torch begins here. No garbage is collected from here until the worker has imported all that it needs.
    """
    gc.disable()
    private_api.set_torch_environment()


def open_store(host: str, timeout_s: float) -> int:
    """Open the store of a group in its rank 0, which listens at the address `host` alone. Return its port.

    PyTorch would listen on all interfaces. Its store accepts any reader and writer, without a token.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port: int = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    _stores[:] = [store]
    return port


def join_group(backend: str, host: str, port: int, rank: int, size: int, timeout_s: float) -> None:
    """Create the default process group in a process of rank `rank`. Call it in all `size` processes.

    Args:
        backend: The backend of `torch.distributed`, such as "gloo".
        host: The address of rank 0, where its store listens. The loopback address if all ranks are on one machine.
        port: The port of the store, or of nothing for a single rank, which needs no server.
        rank: The rank of this process.
        size: The number of ranks.
        timeout_s: The time limit of a collective operation, in seconds.
    """
    import torch.distributed as dist
    from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))  # libraries of users read them
    # Otherwise, Gloo listens at the address of the machine's name. On Debian that is a loopback address.
    if name := find_interface(host):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    timeout = timedelta(seconds=timeout_s)
    store: Store
    if size == 1:
        store = HashStore()
        store.set_timeout(timeout)
    elif rank == 0:
        store = _stores.pop()
    else:
        store = TCPStore(host, port, is_master=False, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def leave_group() -> None:
    """Destroy the default process group in a rank that ends."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def find_interface(host: str) -> str:
    """Return the name of the interface by which this machine reaches the address `host`, such as "eth0", or ""."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))  # sends nothing
        own = probe.getsockname()[0]
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if own in [each.address for each in addresses]), "")
