"""Files in a bucket, as those on a disk."""

import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trainables.filesystem import paths, remote_path
from trainables.filesystem.paths import RemotePath, parse_path


def test_a_path_and_a_file_uri_are_on_the_disk_and_other_uris_are_elsewhere(tmp_path):
    assert parse_path("runs") == Path("runs")
    assert parse_path(tmp_path) == tmp_path
    assert parse_path(f"file://{tmp_path}") == tmp_path
    there = parse_path("s3://bucket/path/")
    assert isinstance(there, RemotePath)
    assert parse_path(there) is there


@pytest.mark.parametrize("query", ["", "?region=eu-west-1&scheme=http"])
def test_a_remote_place_has_the_names_that_a_path_has(query):
    there = parse_path(f"s3://bucket/runs{query}") / "a" / "epoch-1.pt"
    assert str(there) == f"s3://bucket/runs/a/epoch-1.pt{query}"
    assert parse_path(str(there)) == there
    assert there.name == "epoch-1.pt"
    assert str(there.parent) == f"s3://bucket/runs/a{query}"
    assert str(there.with_name("b")) == f"s3://bucket/runs/a/b{query}"
    assert str(parse_path(f"s3://bucket{query}") / "x") == f"s3://bucket/x{query}"
    assert {there: 1}[pickle.loads(pickle.dumps(there))] == 1
    assert not isinstance(there, Path)


@pytest.mark.parametrize(
    "uri",
    ["gs://anonymous@bucket/a/b", "abfs://bucket@account.dfs.core.windows.net/a/b", "s3://bucket/a/b?region=here"],
)
def test_a_place_of_another_kind_is_what_its_file_system_calls_it(uri):
    assert str(parse_path(uri)) == uri
    assert parse_path(uri).key == "bucket/a/b"


def test_who_stays_on_the_disk_does_without_pyarrow():
    program = (
        "import sys; from trainables.filesystem.paths import parse_path; parse_path('runs').exists(); "
        "print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("s3://KEY:hush@bucket/x", "credentials"),
        ("s3://KEY:hu/sh@bucket/x", "credentials"),
        ("gs://me:hush@bucket/x", "credentials"),
        ("s3://bucket/x?secret_key=hush", "credentials"),
        ("s3://bucket/x?endpoint_override=http://me:hush@host:9000", "credentials"),
        ("s3://bucket/x?endpoint_override=me%3Ahush%40host", "credentials"),
        ("s3://bucket/x?zone=hush", "must be of endpoint_override, region, scheme"),
        ("ftp://host/hush", "got ftp://"),
        ("s3:///x", "name a bucket"),
    ],
)
def test_a_uri_that_is_no_place_is_refused_without_what_is_secret_in_it(uri, told):
    with pytest.raises(ValueError, match=told) as error:
        parse_path(uri)
    assert "hush" not in str(error.value)


def test_what_is_written_is_read_replaced_listed_and_deleted(anywhere):
    file = anywhere / "sub" / "midway ?#%20é.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    assert not file.exists()
    file.write_bytes(b"old")
    file.write_text("new: ä")
    (anywhere / "sub" / "other").write_bytes(b"")
    assert file.read_text() == "new: ä"
    assert file.is_file()
    assert not file.is_dir()
    assert file.parent.is_dir()
    assert sorted(path.name for path in (anywhere / "sub").iterdir()) == [file.name, "other"]
    assert [*(anywhere / "sub").glob("midway*.pt")] == [file]
    assert [*(anywhere / "nothing").glob("*")] == []
    assert abs(paths.get_modified_ns(file) / 1e9 - time.time()) < 60
    file.unlink()
    assert not file.exists()
    file.unlink(missing_ok=True)
    paths.remove_tree(anywhere / "sub")
    assert not (anywhere / "sub" / "other").exists()
    paths.remove_tree(anywhere / "sub")


def test_a_file_that_is_not_there_is_no_file(anywhere):
    missing = anywhere / "missing"
    for action in (missing.read_bytes, missing.unlink, lambda: paths.get_modified_ns(missing)):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory.*missing"):
            action()
    with pytest.raises(FileNotFoundError):
        paths.copy(missing, anywhere / "copy")
    assert not (anywhere / "copy").exists()


def test_folders_go_into_a_bucket_and_come_back_as_they_were(s3, tmp_path):
    content = {"a": b"", "b/c.bin": bytes(range(256)) * 100_000, "b/d/e": b"e"}
    for name, each in content.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(each)
    there = parse_path(s3) / "x"
    paths.upload(tmp_path / "there", there)
    assert paths.list_files(there) == there.list_files() == [*content]
    paths.copy(there / "b" / "c.bin", there / "copy")
    paths.download(there, tmp_path / "back")
    found = {name: (tmp_path / "back" / name).read_bytes() for name in paths.list_files(tmp_path / "back")}
    assert found == content | {"copy": content["b/c.bin"]}
    assert paths.compute_digest(there / "copy") == paths.compute_digest(tmp_path / "back" / "copy")
    with paths.local_copy(there / "b") as copy:
        assert paths.list_files(copy) == ["c.bin", "d/e"]
    assert not copy.exists()
    with pytest.raises(FileNotFoundError, match="nothing"):
        paths.download(parse_path(s3) / "nothing", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_bucket_that_is_not_there_is_told(s3):
    with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x"):
        parse_path("s3://no-such-bucket/x").write_bytes(b"x")


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(403)
        self.end_headers()

    do_HEAD = do_PUT = do_DELETE = do_GET

    def log_message(self, *_):
        """Nothing: it would go among the test's own."""


def test_a_bucket_that_refuses_is_told_without_the_credentials(s3, s3_server):
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = parse_path(f"s3://theirs/x?endpoint_override=http://127.0.0.1:{server.server_port}")
    for action in (file.read_bytes, lambda: file.write_bytes(b"x"), file.unlink, lambda: [*file.iterdir()]):
        with pytest.raises(PermissionError, match="s3://theirs/x") as error:
            action()
        assert not {*s3_server.env.values()} & {*re.findall(r"[\w-]{4,}", str(error.value))}
    server.shutdown()
    server.server_close()


def test_an_endpoint_in_the_uri_goes_before_the_one_of_the_environment(s3, s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    here = s3_server.url.removeprefix("http://")
    file = parse_path(f"{s3}/a?scheme=http&endpoint_override={here}&region=us-east-1") / "b"
    file.write_bytes(b"here")
    assert file.read_bytes() == b"here"


def test_an_endpoint_that_does_not_answer_is_told_in_time(s3, monkeypatch):
    monkeypatch.setattr(remote_path, "CONNECT_S", 0.5)
    with socket.socket() as deaf:  # its queue is full: a connection is not even refused
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        began = time.monotonic()
        with pytest.raises(OSError, match=rf"s3://deaf/x\?.*{port}"):
            parse_path(f"s3://deaf/x?endpoint_override=http://127.0.0.1:{port}").write_bytes(b"x")
        assert time.monotonic() - began < 15
        for caller in callers:
            caller.close()
