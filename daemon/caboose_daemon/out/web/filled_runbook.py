"""A runbook filled with what is known of one incident: names, process ids, and commands that can be copied as they are.

Design
------
Runbooks are written for any job, with the placeholders JOB, INCIDENT, PID and DAEMON. Names come from the network, so
they are put into the parsed document and not into its Markdown: nothing in a name becomes a link or a heading, and the
renderer escapes it. Inside a command a name is quoted for the shell, inside a query for PromQL.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from urllib.parse import quote, urlsplit

from markdown_it.token import Token

from caboose_daemon.incidents.incident import Incident
from caboose_daemon.jobs.alert_wording import alert_text, members_of
from caboose_daemon.jobs.job import Job

MAX_RANKS = 4
_PLACES = re.compile(r'"(?P<quoted>JOB|INCIDENT)"|\b(?P<bare>JOB|INCIDENT|PID|DAEMON)\b')
_CODE = ("code_inline", "code_block", "fence")


@dataclass(frozen=True)
class Filling:
    """What the placeholders stand for; one that is not in `values` stays."""

    values: Mapping[str, str]
    head: str
    """HTML about the incident, to be put below the title; empty where no incident is named."""

    def fill(self, tokens: Iterable[Token]) -> None:
        """Replaces the placeholders in a parsed runbook."""
        for token in tokens:
            if token.children:
                self.fill(token.children)
            if token.type in _CODE:
                token.content = _PLACES.sub(self._in_code, token.content)
            elif token.type == "text":
                token.content = _PLACES.sub(self._in_text, token.content)

    def _in_code(self, found: re.Match[str]) -> str:
        name = found["quoted"] or found["bare"]
        value = self.values.get(name)
        if value is None:
            return found[0]
        if found["quoted"]:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        return shlex.quote(value)

    def _in_text(self, found: re.Match[str]) -> str:
        return self.values.get(found["quoted"] or found["bare"], found[0])


def filling(job: Job | None, number: int | None, page: str) -> Filling:
    """For an incident of a job, for a job alone, or for neither."""
    values = {"DAEMON": urlsplit(page).netloc} if page else {}
    if job is None:
        return Filling(values, "")
    incident = None if number is None else job.incidents.find(number)
    values["JOB"] = job.name
    if incident is None:
        return Filling(values, "")
    members = members_of(job, incident)
    values["INCIDENT"] = incident.id
    if members and members[0].hello.pid:
        values["PID"] = str(members[0].hello.pid)
    return Filling(values, _head(job, incident))


def _head(job: Job, incident: Incident) -> str:
    """What is wrong, where, and the commands for the processes concerned."""
    words = incident.alert or alert_text(job, incident)
    link = f"../?job={quote(job.name, safe='')}#incident={incident.number}"
    state = "unresolved: the run is over" if incident.is_unresolved else incident.state
    parts = [
        "<h2>This incident</h2>",
        f"<p><strong>{escape(words.summary)}</strong></p>",
        f"<p><a href='{escape(link)}'>{escape(incident.id)}</a>, {incident.severity}, {state}.</p>",
        "<ul>",
        *(f"<li>{_line(line)}</li>" for line in words.description.splitlines()),
        "</ul>",
    ]
    commands = _commands(job, incident)
    if commands:
        parts += ["<p>The processes:</p>", f"<pre><code>{escape(commands)}</code></pre>"]
    return "\n".join(parts)


def _line(text: str) -> str:
    """A line of the description: what is between backticks, and a command at its end, as code."""
    name, colon, rest = text.partition(": ")
    if colon and rest.startswith("caboose "):
        return f"{escape(name)}: <code>{escape(rest)}</code>"
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _commands(job: Job, incident: Incident) -> str:
    """How to look at the processes that it began in; nothing where they are gone."""
    members = [member for member in members_of(job, incident) if member.hello.host and member.hello.pid]
    if job.ending is not None:
        return ""
    lines = []
    for member in members[:MAX_RANKS]:
        host, pid = shlex.quote(member.hello.host), member.hello.pid
        lines += [f"ssh {host} ps -o pid,stat,etime,args -p {pid}", f"ssh {host} py-spy dump --pid {pid}"]
    return "\n".join(lines)
