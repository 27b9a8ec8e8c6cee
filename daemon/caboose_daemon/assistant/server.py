"""The tools and prompts as a server of the Model Context Protocol, with the official SDK."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations

from caboose_daemon.assistant import prompts
from caboose_daemon.assistant.budget import compact, tokens
from caboose_daemon.assistant.reader import MAX_ERROR, AskError, DaemonError
from caboose_daemon.assistant.tools import Tool
from caboose_daemon.assistant.untrusted import FromJob, from_job
from caboose_daemon.version import __version__


def make_server(tools: Sequence[Tool]) -> MCPServer[Any]:
    """A server with these tools, and the prompts."""
    acts = any(tool.acts for tool in tools)
    server: MCPServer[Any] = MCPServer(
        "caboose",
        title="Caboose",
        instructions=prompts.INSTRUCTIONS + (prompts.ACTING if acts else ""),
        version=__version__,
        log_level="WARNING",
    )
    for tool in tools:
        hints = ToolAnnotations(
            read_only_hint=not tool.acts,
            destructive_hint=tool.is_destructive,
            idempotent_hint=not tool.acts,
            open_world_hint=False,
        )
        server.add_tool(_answering(tool), name=tool.name, annotations=hints)
    server.prompt("why_is_my_run_sick", title="Why is my run sick?")(prompts.sick)
    server.prompt("is_this_plateau_normal", title="Is this plateau normal?")(prompts.plateau)
    server.prompt("compare_these_runs", title="Compare these runs")(prompts.comparison)
    return server


def _answering(tool: Tool) -> Callable[..., CallToolResult]:
    """The tool with its answer as compact JSON within its budget, typed by what the function returns."""

    @functools.wraps(tool.function)
    def answer(*arguments: Any, **named: Any) -> CallToolResult:
        try:
            value = tool.function(*arguments, **named)
        except DaemonError as error:
            return _failed(from_job(error, MAX_ERROR))
        except AskError as error:
            return _failed(str(error))
        size = tokens(value)
        if size > tool.budget:
            return _failed(f"the answer has {size} tokens, and {tool.name} may answer with {tool.budget}: ask for less")
        return CallToolResult(content=[TextContent(type="text", text=compact(value))], structured_content=value)

    signature = inspect.signature(tool.function)
    typed = Annotated[CallToolResult, signature.return_annotation]
    answer.__signature__ = signature.replace(return_annotation=typed)  # type: ignore[attr-defined]
    return answer


def _failed(why: str | FromJob) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=compact({"error": why}))], is_error=True)
