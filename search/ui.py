"""A local page with the searches of a storage folder, their live reports, and buttons that change them."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import click

from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import list_searches, parse_storage
from searchlight.search.reporting.console.command_line import Command as CommandLine
from searchlight.search.reporting.console.search_state import describe_status
from searchlight.search.reporting.html.report import render_report
from searchlight.search.reporting.html.template import Section, render_page
from searchlight.search.reporting.live_page import render_live
from searchlight.search.reporting.running_search import RunningSearch, split_pairs
from searchlight.search.reporting.status import build_status, describe_state, get_outcome_so_far, is_running
from searchlight.search.steering.operations import OPERATIONS
from searchlight.search.study.record import SearchRecord
from searchlight.trainables.filesystem.paths import StoragePath

HOST = "127.0.0.1"
LONGEST = 10_000  # bytes of a form
BUTTONS = ("try", "stop", "keep", "pause", "continue", "finish")


def _parse_text(operation: str, text: str) -> dict[str, Any]:
    """Return the arguments that the text in the field of a button means."""
    if not OPERATIONS[operation].hint:
        return {}
    name, argument = next(iter(OPERATIONS[operation].arguments.items()))
    if argument.type != list[int]:
        return {name: split_pairs([text.replace(" ", "")])}
    try:
        return {name: [int(part) for part in text.replace(",", " ").split()]}
    except ValueError as error:
        raise UsageError(f"trials must be numbers such as 3 7, but got {text!r}.") from error


class PageServer(ThreadingHTTPServer):
    """Serves pages on this machine alone, to who knows the token in their address.

    Args:
        name: The only search to show. None: all of `storage`.
        steers: Whether the pages have buttons that change a search.
    """

    daemon_threads = True

    def __init__(self, storage: StoragePath, name: str | None = None, port: int = 0, steers: bool = False) -> None:
        super().__init__((HOST, port), PageHandler)
        self.storage, self.name, self.steers, self.token = storage, name, steers, secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def list_names(self) -> list[str]:
        return [name for name in list_searches(self.storage) if self.name in (None, name)]


class PageHandler(BaseHTTPRequestHandler):
    """Answers a request for a page, or a button."""

    server: PageServer
    timeout = 60.0  # seconds for a request: anybody on this machine can open connections, and each has a thread

    def do_GET(self) -> None:
        self._answer(self._render_page)

    def do_POST(self) -> None:
        self._answer(self._press_button)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an address has the token."""

    def _answer(self, respond: Callable[[str, Mapping[str, str]], None]) -> None:
        """Call `respond` with the name of the search that is asked for, or "", and the fields of the query."""
        address = urlsplit(self.path)
        token, _, name = address.path.strip("/").partition("/")
        port = "" if self.server.server_port == HTTP_PORT else f":{self.server.server_port}"  # as browsers send it
        known = {f"{host}{port}" for host in (HOST, "localhost")}
        # Another name of this machine would let a page of another origin read the answer.
        if self.headers["Host"] not in known or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self.send_error(HTTPStatus.FORBIDDEN, "Open the address that searchlight ui has printed")
        try:
            names = self.server.list_names()
            if name and unquote(name) not in names:
                return self.send_error(HTTPStatus.NOT_FOUND, "There is no such search")
            respond(unquote(name), {key: values[0] for key, values in parse_qs(address.query).items()})
        except (UsageError, OSError) as error:  # a store that cannot be read, or a browser that is gone
            with suppress(OSError):
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "The search cannot be read", str(error))

    def _render_page(self, name: str, query: Mapping[str, str]) -> None:
        if not name:
            return self._send(self._render_list())
        search = RunningSearch(self.server.storage / name)
        record = search.load()
        state = escape("\n".join(describe_status(record, build_status(record, search.load_driver()))))
        buttons = self._render_buttons(record, query.get("told", ""))
        controls = f'<p><a href="./">all searches</a></p><pre>{state}</pre>{buttons}'
        if is_running(record):
            return self._send(render_live(record, controls))
        self._send(render_report(record, controls=controls))

    def _render_list(self) -> str:
        items = []
        for name in reversed(self.server.list_names()):
            try:
                record = RunningSearch(self.server.storage / name).load()
                outcomes = Counter(map(get_outcome_so_far, record.trials))
                counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
                state = describe_state(record)
                told = f"{state}: {counts or 'no trial yet'}"
            except UsageError as error:  # list the others if a store is unavailable
                told = str(error)
            items.append(f'<li><a href="{quote(name)}">{escape(name)}</a> {escape(told)}</li>')
        none = Section("Searches", "" if items else f"There is none in {self.server.storage} yet.")
        return render_page("Searchlight", str(self.server.storage), [none], controls=f"<ul>{''.join(items)}</ul>")

    def _render_buttons(self, record: SearchRecord, told: str) -> str:
        if not self.server.steers or not is_running(record):
            return ""
        forms = [
            f'<form method="post"><button name="operation" value="{operation}">{operation}</button>'
            + (f'<input name="text" placeholder="{hint}" required>' if hint else "")
            + '<input name="why" placeholder="why"></form>'
            for operation, hint in ((button, OPERATIONS[button].hint) for button in BUTTONS)
        ]
        return f'<div class="controls">{"".join(forms)}</div><p role="status">{escape(told)}</p>'

    def _press_button(self, name: str, query: Mapping[str, str]) -> None:
        own, length = f"http://{self.headers['Host']}", self.headers["Content-Length"] or ""
        is_short = length.isdecimal() and int(length) <= LONGEST  # read(-1) would read without end
        if not self.server.steers or not name or self.headers["Origin"] != own or not is_short:
            return self.send_error(HTTPStatus.FORBIDDEN, "Commands need --allow-steering, and a button of this page")
        content = self.rfile.read(int(length)).decode(errors="replace")
        form = {key: values[0] for key, values in parse_qs(content).items()}
        operation = form.get("operation", "")
        try:
            if operation not in BUTTONS:
                raise UsageError(f"operation must be one of {', '.join(BUTTONS)}, but got {operation!r}.")
            args = _parse_text(operation, form.get("text", ""))
            entry = RunningSearch(self.server.storage / name).give(operation, args, form.get("why", ""))
            told = "; ".join([entry.answer.effect, *entry.answer.warnings])
        except UsageError as error:
            told = f"refused: {error}"
        except TimeoutError as error:
            told = str(error)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", f"{quote(name)}?told={quote(told)}")
        self.end_headers()

    def _send(self, text: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "same-origin",  # the address has the token
            "X-Frame-Options": "DENY",
        }
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)


@click.command("ui", cls=CommandLine)
@click.argument("name", required=False)
@click.option("--storage", metavar="PLACE", default="runs", help="Folder or bucket of the searches. Default: runs.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port on this machine. Default: a free one."
)
@click.option("--allow-steering", is_flag=True, help="Show buttons that change a running search.")
def main(name: str | None, storage: str, port: int, allow_steering: bool) -> None:
    """Show the searches of a folder in a browser, also while they run. NAME shows this search alone."""
    place = parse_storage(storage)
    if name is not None:
        search = RunningSearch(name, storage)
        search.load()  # it must exist
        place, name = search.place.parent, search.name
    try:
        server = PageServer(place, name, port, allow_steering)
    except OSError as error:
        raise UsageError(f"--port must be free, but {port} is not: {error}.") from error
    print(f"open {server.address}{quote(name or '')}  (Ctrl-C ends it)", flush=True)
    with server:
        server.serve_forever()
