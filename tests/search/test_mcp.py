"""The MCP server, as an agent's client starts it and talks to it."""

import asyncio
import json
import os
import sys

import pytest

from searchlight import __version__
from searchlight.search.reporting.status import build_status
from searchlight.search.study.record import load_search
from tests.search.execution.searcher_harness import report

pytest.importorskip("mcp", reason="mcp is not installed")
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

PROGRAM = "from searchlight.search.cli import main; main()"


@pytest.fixture
def storage(make_searcher, tmp_path):
    """The folder of a search that has ended with one trial."""
    searcher, study, _ = make_searcher(trials=2)
    searcher.suggest("t0")
    report(searcher, "t0", 3, 0.5, done=True)
    study.commit()
    return tmp_path.parent


def talk(storage, calls, *options):
    """Start the server, and return the names of its tools, and the answer to each call as its text or its error."""
    arguments = ["-c", PROGRAM, "mcp", "--storage", str(storage), *options]

    async def run():
        async with (
            stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ})) as (
                read,
                write,
            ),
            ClientSession(read, write) as session,
        ):
            server = (await session.initialize()).server_info
            assert (server.name, server.version) == ("searchlight", __version__)
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            return tools, [await session.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def test_agent_reads_searches_and_cannot_change_them(storage, tmp_path):
    name = {"name": tmp_path.name}
    calls = [("list_searches", {}), ("get_state", name), ("get_state", {"name": "none"}), ("steer", name)]
    tools, (listed, state, unknown, refused, misspelled) = talk(
        storage, [*calls, ("get_trials", name | {"were": "x<1"})]
    )
    assert [*tools] == ["list_searches", "get_state", "get_trials", "get_curve", "explain", "wait"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())
    assert tmp_path.name in json.loads(listed.content[0].text)["searches"]
    found = json.loads(state.content[0].text)
    assert found["best"]["value"] == 0.5
    status = build_status(load_search(tmp_path))
    assert {name: found[name] for name in ("budget", "problems", "waiting")} == {
        name: status[name] for name in ("budget", "problems", "waiting")
    }
    assert "name must be one of list_searches" in unknown.content[0].text
    assert (unknown.is_error, refused.is_error, misspelled.is_error) == (True, True, True)
    assert "were" in misspelled.content[0].text


def test_agent_that_may_steer_has_eight_tools(storage, tmp_path):
    steer = ("steer", {"name": tmp_path.name, "operation": "pause"})
    tools, (answer,) = talk(storage, [steer], "--allow-steering")
    assert len(tools) == 8
    assert not tools["steer"].annotations.read_only_hint
    assert "must run, but has ended" in answer.content[0].text
