"""Ports of this machine."""

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def find_free_ports(count: int = 1, host: str = LOOPBACK) -> list[int]:
    """Return different ports at the address `host` that nothing uses at present."""
    with ExitStack() as opened:
        listeners = [opened.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
