"""Read and write files in a bucket as those on a disk."""

import contextlib
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from searchlight.trainables.filesystem import paths, remote_path
from searchlight.trainables.filesystem.paths import RemotePath, parse_path
from tests.conftest import ROOT


def test_paths_and_file_uris_are_local_and_other_uris_remote(tmp_path):
    assert parse_path("runs") == Path("runs")
    assert parse_path(tmp_path) == tmp_path
    assert parse_path(f"file://{tmp_path}") == tmp_path
    there = parse_path("s3://bucket/path/")
    assert isinstance(there, RemotePath)
    assert parse_path(there) is there


@pytest.mark.parametrize("query", ["", "?region=eu-west-1&scheme=http"])
def test_remote_path_has_the_names_of_a_path(query):
    there = parse_path(f"s3://bucket/runs{query}") / "a" / "epoch-1.pt"
    assert str(there) == f"s3://bucket/runs/a/epoch-1.pt{query}"
    assert parse_path(str(there)) == there
    assert there.name == "epoch-1.pt"
    assert str(there.parent) == f"s3://bucket/runs/a{query}"
    assert str(there.with_name("b")) == f"s3://bucket/runs/a/b{query}"
    assert str(parse_path(f"s3://bucket{query}") / "x") == f"s3://bucket/x{query}"
    assert {there: 1}[pickle.loads(pickle.dumps(there))] == 1
    assert not isinstance(there, Path)


@pytest.mark.parametrize("uri", ["gs://anonymous@bucket/a/b", "abfs://bucket@account.dfs.core.windows.net/a/b"])
def test_key_is_what_the_file_system_calls_the_path(uri):
    assert str(parse_path(uri)) == uri
    assert parse_path(uri).key == "bucket/a/b"


def test_local_paths_do_not_import_pyarrow():
    program = (
        "import sys; from searchlight.trainables.filesystem.paths import parse_path; parse_path('runs').exists(); "
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
        ("s3://bucket/x?endpoint_override=me%3Ahush%40host", "credentials"),
        ("s3://bucket/x?zone=hush", "must be of endpoint_override, region, scheme"),
        ("ftp://host/hush", "got ftp://"),
        ("s3:///x", "name a bucket"),
    ],
)
def test_invalid_uri_raises_value_error_without_its_secrets(uri, told):
    with pytest.raises(ValueError, match=told) as error:
        parse_path(uri)
    assert "hush" not in str(error.value)


def test_file_is_written_read_replaced_listed_and_deleted(anywhere):
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
    assert abs(paths.get_modified_ns(file) / 1e9 - time.time()) < 3600
    file.unlink()
    assert not file.exists()
    file.unlink(missing_ok=True)
    for _ in range(2):
        paths.remove_tree(anywhere / "sub")
        assert not (anywhere / "sub" / "other").exists()


def test_missing_file_raises_file_not_found_error(anywhere):
    missing = anywhere / "missing"
    for action in (missing.read_bytes, missing.unlink, lambda: paths.get_modified_ns(missing)):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory.*missing"):
            action()
    with pytest.raises(FileNotFoundError):
        paths.copy(missing, anywhere / "copy")
    assert not (anywhere / "copy").exists()


def test_folder_is_uploaded_copied_and_downloaded_unchanged(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_path, "CHUNK", 2**16)
    content = {"a": b"", "b/c.bin": bytes(range(256)) * 1000, "b/d/e": b"e"}
    for name, each in content.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(each)
    there = parse_path(s3) / "x"
    paths.upload(tmp_path / "there", there)
    assert paths.list_files(there) == there.list_files() == [*content]
    assert (there / "b" / "c.bin").read_bytes() == content["b/c.bin"]
    paths.copy(there / "b" / "c.bin", there / "copy")
    paths.download(there, tmp_path / "back")
    found = {name: (tmp_path / "back" / name).read_bytes() for name in paths.list_files(tmp_path / "back")}
    assert found == content | {"copy": content["b/c.bin"]}
    assert paths.compute_digest(there / "copy") == paths.compute_digest(tmp_path / "back" / "copy")
    with paths.local_copy(there / "b") as copy:
        assert paths.list_files(copy) == ["c.bin", "d/e"]
    assert not copy.exists()
    with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/x"):
        parse_path("s3://no-such-bucket/x").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="nothing"):
        paths.download(parse_path(s3) / "nothing", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("few", [1, 9], ids=["one request for all", "a request for each"])
def test_subfolders_keep_only_the_named_content(anywhere, monkeypatch, few):
    monkeypatch.setattr(paths, "FEW", few)
    names = [f"{number}/{name}" for number in (1, 2, 12) for name in ("a.pt", "a.pt.pictures/one", "b/part")]
    for name in names:
        (anywhere / name).parent.mkdir(parents=True, exist_ok=True)
        (anywhere / name).write_bytes(b"")
    with ThreadPoolExecutor(1) as pool:
        paths.start_deletion(pool, paths.delete_except, anywhere, {"1": {"a.pt", "b"}, "2": set(), "3": {"a.pt"}})
    assert paths.list_files(anywhere) == sorted(["1/a.pt", "1/b/part", *names[6:]])


def test_bucket_is_neither_locked_nor_asked_for_a_file(anywhere):
    is_local = isinstance(anywhere, Path)
    assert [paths.may_exist(anywhere / "gone", in_bucket) for in_bucket in (True, False)] == [not is_local, False]
    with paths.lock_file(anywhere / "lock"):
        assert (anywhere / "lock").exists() is is_local
    path, file_system = paths.get_arrow_location(anywhere / "a")
    (anywhere / "a").write_bytes(b"content")
    assert file_system.open_input_file(path).read() == b"content"


def test_workers_of_a_node_share_one_copy_of_prepared_files(s3, tmp_path, monkeypatch):
    assert paths.cached_on_node(str(tmp_path), "nowhere") == tmp_path
    files = parse_path(s3) / "files"
    assert not paths.cached_on_node(str(files), str(tmp_path)).exists(), "of a task that prepares nothing"
    (files / "deep" / "words.txt").write_text("one")
    first = paths.cached_on_node(str(files), str(tmp_path))
    assert (first / "deep" / "words.txt").read_text() == "one"
    with monkeypatch.context() as patch:
        patch.setattr(paths, "download", None)
        assert paths.cached_on_node(str(files), str(tmp_path)) == first
    (files / "deep" / "words.txt").write_text("other words")
    assert (paths.cached_on_node(str(files), str(tmp_path)) / "deep" / "words.txt").read_text() == "other words"
    assert (first / "deep" / "words.txt").read_text() == "one", "which others may read now"


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(403)
        self.end_headers()

    do_HEAD = do_PUT = do_DELETE = do_GET

    def log_message(self, *_):
        """Log nothing: it would go among the test's own."""


def test_refusing_bucket_raises_permission_error_without_secrets(s3, s3_server):
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    file = parse_path(f"s3://theirs/x?endpoint_override=http://127.0.0.1:{server.server_port}")
    for action in (file.read_bytes, lambda: file.write_bytes(b"x"), file.unlink, lambda: [*file.iterdir()]):
        with pytest.raises(PermissionError, match="s3://theirs/x") as error:
            action()
        assert not {*s3_server.env.values()} & {*re.findall(r"[\w-]{4,}", str(error.value))}
    server.shutdown()
    server.server_close()


def test_endpoint_of_the_uri_overrides_the_environment(s3, s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    here = s3_server.url.removeprefix("http://")
    file = parse_path(f"{s3}/a?scheme=http&endpoint_override={here}&region=us-east-1") / "b"
    file.write_bytes(b"here")
    assert file.read_bytes() == b"here"


@pytest.mark.slow
def test_endpoint_that_does_not_answer_raises_os_error(s3, monkeypatch):
    monkeypatch.setattr(remote_path, "CONNECT_S", 0.2)
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())  # its queue is full: a connection is not even refused
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", port))
        with pytest.raises(OSError, match=rf"s3://deaf/x\?.*{port}"):
            parse_path(f"s3://deaf/x?endpoint_override=http://127.0.0.1:{port}").write_bytes(b"x")
