"""The pages of a storage folder in a real browser, and what the server refuses."""

import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest
from click.testing import CliRunner

from searchlight.search.experiment.steering import Steering
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.ui import PageServer, main
from tests.end_to_end.processes import wait_until
from tests.search.execution.searcher_harness import report


@pytest.fixture
def driver(make_searcher, tmp_path):
    """A searcher whose driver has begun and follows commands. A trial has reported."""
    searcher, study, _ = make_searcher(trials=6)
    study.record_driver_start(1.0)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.5)
    study.commit()
    with Steering(searcher, tmp_path, print, print, print, print):
        yield searcher


@pytest.fixture
def serve(tmp_path):
    """Serves the folder of the search."""
    servers = []

    def start(**options):
        servers.append(PageServer(tmp_path.parent, **options))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(address, form=None, **headers):
    """The status of a request, and its text."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(address, data, {key.title(): value for key, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_button_of_the_page_gives_a_command(chromium, driver, serve, tmp_path):
    context = chromium.new_context()
    shown = context.new_page()
    shown.set_default_timeout(60_000)
    shown.goto(serve(steers=True).address)
    shown.get_by_role("link", name=tmp_path.name).click()
    tries = shown.locator("form", has=shown.get_by_role("button", name="try"))
    tries.get_by_placeholder("lr=").fill("lr=0.25")
    tries.get_by_placeholder("why").fill("a hunch")
    tries.get_by_role("button").click(no_wait_after=True)
    wait_until(lambda: driver.apply_commands() or driver.study.get_commands())
    status = shown.get_by_role("status")
    wait_until(lambda: "the next trial has lr=0.25" in status.inner_text())
    shown.locator("form", has=shown.get_by_role("button", name="stop")).get_by_placeholder("trials").fill("7")
    shown.get_by_role("button", name="stop").click(no_wait_after=True)
    wait_until(lambda: driver.apply_commands() or len(driver.study.get_commands()) == 2)
    wait_until(lambda: "refused: trial 7 must be one of the search" in status.inner_text())
    assert "a hunch" in shown.content(), "the page has the log"
    assert driver.study.get_commands()[0].command.why == "a hunch"
    context.close()


def test_list_and_page_are_read_with_the_token_alone(driver, serve, tmp_path):
    server = serve()
    status, text = ask(server.address)
    assert (status, f'<a href="{tmp_path.name}">' in text) == (200, True)
    assert "running: 1 unfinished" in text
    status, text = ask(server.address + tmp_path.name)
    assert (status, "the search runs; written at" in text, "<form" in text) == (200, True, False)
    assert "\nbudget: trials 1; " in text, "the lines of searchlight status"
    assert ask(server.address.replace(server.token, "guessed"))[0] == 403
    assert ask(server.address, host=f"evil.example:{server.server_port}")[0] == 403
    assert ask(server.address + "..%2f..%2fetc")[0] == 404


def test_port_80_is_left_out_by_browsers(driver, serve):
    server = serve()
    address, server.server_port = server.address, 80
    assert ask(address, host="127.0.0.1")[0] == 200
    assert ask(address, host="127.0.0.1:8080")[0] == 403
    done = CliRunner().invoke(main, ["--port", "65536"])
    assert (done.exit_code, "65536 is not in the range 0<=x<=65535" in done.output) == (2, True)


def test_command_from_elsewhere_is_refused(driver, serve, tmp_path):
    quiet, steered = serve(), serve(steers=True)
    form = {"operation": "pause"}
    for server, origin in ((quiet, None), (steered, "http://evil.example"), (steered, "null"), (steered, "")):
        own = f"http://127.0.0.1:{server.server_port}" if origin is None else origin
        assert ask(server.address + tmp_path.name, form, origin=own)[0] == 403
    own = f"http://127.0.0.1:{steered.server_port}"
    _, text = ask(steered.address + tmp_path.name, {"operation": "undo"}, origin=own)
    assert "refused: operation must be one of try, stop, keep, pause, continue, finish" in text
    _, text = ask(steered.address + tmp_path.name, {"operation": "stop", "text": "x"}, origin=own)
    assert "refused: trials must be numbers such as 3 7" in text
    assert driver.study.get_commands() == []


@pytest.mark.parametrize("length", ["-1", "many", "10001"])
def test_form_of_another_length_is_refused(driver, serve, tmp_path, length):
    server = serve(steers=True)
    own = f"127.0.0.1:{server.server_port}"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        head = f"POST /{server.token}/{tmp_path.name} HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\n"
        client.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())  # and nothing more
        assert b" 403 " in client.makefile("rb").readline()


def test_names_and_texts_are_no_html(driver, serve, tmp_path):
    server = serve(steers=True)
    study = driver.study
    command = Command("pause", {}, "<b>eve</b>", "<script>alert(1)</script>")
    study.record_command(LogEntry(1, command, Answer(False, "</script><img src=x>")))
    study.commit()
    _, text = ask(f"{server.address}{tmp_path.name}?told=%3Cimg%20src%3Dx%3E")
    assert "&lt;img src=x&gt;" in text
    assert not any(tag in text for tag in ("<b>eve", "<script>alert", "<img"))


def test_one_search_alone_is_shown(driver, serve, tmp_path):
    server = serve(name="another")
    assert ask(server.address + tmp_path.name)[0] == 404
    assert "There is none" in ask(server.address)[1]


def test_path_of_a_search_shows_it(driver, tmp_path):
    program = "from searchlight.search.cli import main; main()"
    command = [sys.executable, "-c", program, "ui", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            status, text = ask(server.stdout.readline().split()[1])
        finally:
            server.terminate()
    assert (status, "the search runs; written at" in text) == (200, True)
