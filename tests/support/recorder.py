"""A whole daemon core without sockets, threads or files: messages in, time as an argument, results recorded."""

from dataclasses import dataclass, field

from caboose_daemon.config import Config
from caboose_daemon.episodes import Episode
from caboose_daemon.job import Job, Member
from caboose_daemon.pipeline import Pipeline
from caboose_daemon.receiver import Receiver, Reply
from caboose_daemon.state import State
from caboose_daemon.summary import StepSummary
from caboose_wire import Event, Message, encode


@dataclass
class Recorder:
    """The pipeline's sink in tests."""

    attempts: list[int] = field(default_factory=list)
    steps: list[StepSummary] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    members: list[tuple[int, str]] = field(default_factory=list)

    def attempt_began(self, job: Job) -> None:
        self.attempts.append(job.num_attempts)

    def member_changed(self, job: Job, member: Member) -> None:
        self.members.append((member.hello.rank, member.state))

    def step_closed(self, job: Job, summary: StepSummary) -> None:
        self.steps.append(summary)

    def episode_changed(self, job: Job, episode: Episode) -> None:
        self.episodes.append(episode)

    def event_declared(self, job: Job, event: Event) -> None:
        self.events.append(event)


class Core:
    """Receiver, alignment, rules and episodes, joined as in the daemon."""

    def __init__(self, config: Config | None = None) -> None:
        self.state = State(rule_configs=(config or Config()).rules, started=0.0)
        self.sink = Recorder()
        self.pipeline = Pipeline(self.state, self.sink)
        self.receiver = Receiver(self.state, self.pipeline)

    def say(self, peer: bytes, message: Message, now: float = 0.0) -> list[Reply]:
        """A peer sends a message."""
        return self.receiver.handle(peer, encode(message), now)

    def pass_time(self, now: float) -> list[Reply]:
        """Time passes, as in one turn of the loop."""
        replies = self.receiver.advance(now)
        self.pipeline.advance(now)
        return replies
