"""Find out that the head of a joined cluster is lost: a real port, and a limit of milliseconds."""

import socket

import pytest

from searchlight.search.execution.cluster import head_watch
from searchlight.search.execution.cluster.head_watch import RECONNECT, HeadWatch, extend_reconnect_time
from tests.end_to_end.processes import wait_until


def listen(port=0):
    return socket.create_server(("127.0.0.1", port))


def test_head_is_lost_after_attempts_that_all_fail_for_the_limit():
    head = listen()
    port = head.getsockname()[1]
    with HeadWatch(f"127.0.0.1:{port}", limit_s=0.05, look_s=0.01) as watch:
        assert watch.describe_loss() == ""
        head.accept()
        assert watch.describe_loss() == ""
        head.close()
        lost = wait_until(watch.describe_loss)
        assert lost == f"the head of the Ray cluster at 127.0.0.1:{port} has not answered for 0 s"
        with listen(port):  # one with fault tolerance has restarted
            wait_until(lambda: watch.describe_loss() == "")


@pytest.mark.parametrize(("failures", "silent_s", "is_lost"), [(4, 99.0, False), (5, 19.0, False), (5, 20.0, True)])
def test_pause_of_this_process_is_no_loss(monkeypatch, failures, silent_s, is_lost):
    watch = HeadWatch("127.0.0.1:1", limit_s=20.0)
    watch._silent_since, watch._failures = 100.0, failures
    monkeypatch.setattr(head_watch.time, "monotonic", lambda: 100.0 + silent_s)
    assert bool(watch.describe_loss()) == is_lost


@pytest.mark.parametrize(("given", "limit_s", "reconnect"), [(None, 20.0, "200"), ("300", 100.0, "280")])
def test_loss_is_known_long_before_ray_aborts_the_process(monkeypatch, given, limit_s, reconnect):
    monkeypatch.setenv(RECONNECT, given) if given else monkeypatch.delenv(RECONNECT, raising=False)
    assert extend_reconnect_time() == limit_s
    assert head_watch.os.environ[RECONNECT] == reconnect
