"""The machines that the tests of clusters run on."""

import pytest

from tests.cluster.hosts import Network, why_not


def test_networks_can_follow_each_other_at_once():
    if reason := why_not():
        pytest.skip(reason)
    for _ in range(20):
        network = Network()
        host = network.host()
        assert "dev eth0" in host.run("ip", "route", "get", network.ip)
        network.remove()
