import socket
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.preemption import notice

GOES_AT = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=2)


class Metadata(BaseHTTPRequestHandler):
    """As an instance with HttpTokens: required sees it; it is to stay for `stays` more questions."""

    stays = 0

    def do_PUT(self):
        self.answer(200, "a-token")

    def do_GET(self):
        if self.headers["X-aws-ec2-metadata-token"] != "a-token":
            return self.answer(401, "")
        if Metadata.stays:
            Metadata.stays -= 1
            return self.answer(404, "")
        return self.answer(200, f'{{"action": "terminate", "time": "{GOES_AT:%Y-%m-%dT%H:%M:%SZ}"}}')

    def answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata():
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_notice_is_read_and_an_absent_service_has_none(metadata):
    Metadata.stays = 1
    assert notice(metadata) is None
    assert notice(metadata) == GOES_AT
    assert notice("http://127.0.0.1:9") is None


def test_service_that_breaks_off_is_reported_once(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def break_off():
            for _ in range(2):
                connection, _ = server.accept()
                connection.recv(1024)
                connection.close()

        threading.Thread(target=break_off, daemon=True).start()
        for _ in range(2):
            assert notice(f"http://127.0.0.1:{server.getsockname()[1]}") is None
    assert [record.getMessage() for record in caplog.records] == [
        "The metadata of this instance cannot be read: Remote end closed connection without response."
    ]


@pytest.mark.slow
def test_node_is_drained_with_the_reason(head, metadata):
    Metadata.stays = 1
    done = head.run("deploy.preemption", AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata)
    assert done.returncode == 0, done.stderr
    (node,) = head.sees("nodes")
    assert node["Alive"] is False  # it had nothing to do
    assert node["DeathReasonMessage"] == "the spot instance is taken away"
