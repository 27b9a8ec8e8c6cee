"""An assistant's side of `caboose mcp`: the SDK's own client, over standard input and output or over HTTP."""

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from support.processes import caboose_command, clean_environment, end, wait_until

T = TypeVar("T")
SECONDS = 60.0


def over_stdio(url: str, work: Callable[[Client], Awaitable[T]], *arguments: str) -> T:
    """What `work` gives with a client of `caboose mcp`, started as an assistant starts it."""
    command, *rest = caboose_command("mcp", "--daemon", url, *arguments)
    environment = clean_environment(XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    return _run(StdioServerParameters(command=command, args=rest, env=environment), work)


def over_http(url: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """The same with a server that runs."""
    return _run(url, work)


def _run(server: Any, work: Callable[[Client], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with Client(server, read_timeout_seconds=SECONDS) as client:
            return await work(client)

    return asyncio.run(connected())


def text_of(result: CallToolResult) -> str:
    """The text that the model reads."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """The answer of a tool, which must not be an error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The error of a tool."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)


@contextlib.contextmanager
def serving_http(directory: Path, *arguments: str) -> Iterator[str]:
    """The URL of a running `caboose mcp --http` on a free port."""
    log = directory / "mcp.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            caboose_command("mcp", "--http", "127.0.0.1:0", *arguments),
            stdout=output,
            stderr=output,
            env=clean_environment(XDG_STATE_HOME=os.environ["XDG_STATE_HOME"]),
            cwd=directory,
        )
    try:
        found = wait_until(lambda: re.search(r"http\S+/mcp", log.read_text()) or process.poll() is not None, 20)
        assert isinstance(found, re.Match), log.read_text()
        yield found[0]
    finally:
        end(process)
