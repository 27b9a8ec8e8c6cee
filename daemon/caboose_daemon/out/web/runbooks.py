"""The alerts' runbooks as pages, linked from each incident."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from caboose_daemon.assets import folder
from caboose_daemon.out.web.context import Context
from caboose_daemon.out.web.files import CONTENT_POLICY
from caboose_daemon.out.web.filled_runbook import Filling, filling

PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="dark light">
  <title>{name} · Caboose</title>
  <link rel="icon" href="../static/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="../static/page.css">
  <link rel="stylesheet" href="../static/runbook.css">
</head>
<body>
  <header class="bar"><a class="brand" href="../?jobs"><span>Caboose</span></a></header>
  <main class="runbook">
{body}
  </main>
</body>
</html>
"""


class Runbooks:
    """GET /runbooks/NAME, for every alert; with `?job=NAME&incident=NUMBER` filled for that incident."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = {path.stem: path for path in folder("runbooks").glob("*.md")}
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

    def routes(self) -> list[Route]:
        return [Route("/runbooks/{name}", self.show)]

    async def show(self, request: Request) -> Response:
        file = self._files.get(request.path_params["name"].removesuffix(".md"))
        if file is None:
            raise HTTPException(404)
        tokens = self._markdown.parse(file.read_text(encoding="utf-8"))
        known = self._filling(request)
        known.fill(tokens)
        body = self._markdown.renderer.render(_without_relative_links(tokens), self._markdown.options, {})
        title, end, rest = body.partition("</h1>\n")
        body = f"{title}{end}{known.head}{rest}"
        headers = {"content-security-policy": CONTENT_POLICY, "cache-control": "no-cache"}
        return Response(PAGE.format(name=file.stem, body=body), media_type="text/html", headers=headers)

    def _filling(self, request: Request) -> Filling:
        """What is known of the incident in the query; an unknown job fills nothing."""
        state, asked = self._context.state, request.query_params
        job = state.copy_of(asked["job"]) if "job" in asked else None
        number = asked.get("incident", "")
        return filling(job, int(number) if re.fullmatch(r"[0-9]{1,9}", number) else None, state.url)


def _without_relative_links(tokens: list[Token]) -> list[Token]:
    """Removes links to files of the source tree, which do not work here; keeps their text."""
    for token in tokens:
        kept: list[Token] = []
        is_dropped = False
        for child in token.children or ():
            if child.type == "link_open":
                is_dropped = "://" not in str(child.attrGet("href"))
            if not (is_dropped and child.type in ("link_open", "link_close")):
                kept.append(child)
        if token.children:
            token.children = kept
    return tokens
