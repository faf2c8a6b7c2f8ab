"""The MCP server, by which agents look at searches and change them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from searchlight import __version__
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import parse_storage
from searchlight.search.reporting.agent_tools import ANSWER_BYTES, AgentTools, bound
from searchlight.search.reporting.console.command_line import Command as CommandLine

READ_ONLY = ("list_searches", "get_state", "get_trials", "get_curve", "explain", "wait")
CHANGING = ("propose", "steer")


@click.command("mcp", cls=CommandLine)
@click.option("--storage", metavar="PLACE", default="runs", help="Folder or bucket of the searches. Default: runs.")
@click.option("--allow-steering", is_flag=True, help="Let the agent change running searches.")
@click.option("--as", "author", default="agent", metavar="AUTHOR", help="The agent's name in the log. Default: agent.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.3, help="Share of trials it may propose. Default: 0.3.")
@click.option("--gpu-hours", type=click.FloatRange(0), metavar="H", help="GPU-hours that its trials may take.")
def main(storage: str, allow_steering: bool, author: str, share: float, gpu_hours: float | None) -> None:
    """Serve the searches of a folder to an agent by MCP, over standard input and output.

    It can only read, unless --allow-steering is given.
    """
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise UsageError('mcp must be installed, but is not. In a clone, run pip install ".[mcp]".') from error

    def guard(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Return the tool with bounded answers, and the errors that an agent should read. The server hides others."""

        @wraps(tool)
        def call(*args: Any, **options: Any) -> dict[str, Any]:
            try:
                return bound(tool(*args, **options))
            except UsageError as error:
                raise ToolError(str(error)[:ANSWER_BYTES]) from error

        return call

    tools = AgentTools(parse_storage(storage), allow_steering, author, share, gpu_hours)
    served = []
    for name in (*READ_ONLY, *(CHANGING if allow_steering else ())):
        annotations = ToolAnnotations(read_only_hint=name in READ_ONLY)
        tool = Tool.from_function(guard(getattr(tools, name)), annotations=annotations)
        arguments = tool.fn_metadata.arg_model
        arguments.model_config["extra"] = "forbid"  # it would ignore a misspelled name
        arguments.model_rebuild(force=True)
        served.append(tool.model_copy(update={"parameters": arguments.model_json_schema()}))
    instructions = "Hyperparameter searches. Conclude from confirmed values alone."
    MCPServer("searchlight", instructions=instructions, version=__version__, tools=served).run()
