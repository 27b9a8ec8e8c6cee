"""A rank's process exists but makes no progress: stopped, in a deadlock, or waiting for something."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

WAITS = {
    "data": "is waiting for data",
    "other": "is outside forward, backward and optimizer",
    "forward": "is in the forward",
    "backward": "is in the backward",
    "optimizer": "is in the optimizer",
}


class RankHung(Cause):
    """A rank that makes no progress while the others wait for it."""

    id = "rank_hung"
    title = "hung rank"
    explains = frozenset({"job_stalled", "rank_silent", "throughput_regression"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        stalled, silent = case.finding("job_stalled"), case.episode("rank_silent")
        if stalled is not None:
            seconds = case.value("job_stalled", "seconds") or 0.0
            yield supports(FAIR, f"no step for {seconds:.0f} s, while every rank sent heartbeats")
            if stalled.ranks and stalled.phase in WAITS:
                yield supports(STRONG, f"{case.who('job_stalled')} {WAITS[stalled.phase]}, the others wait for it")
            elif stalled.ranks:
                yield supports(STRONG, f"{case.who('job_stalled')} is a step behind, the others wait for it")
        if silent is None:
            if stalled is None and case.is_quiet("job_stalled"):
                yield opposes(STRONG, "every rank sends heartbeats, and steps continue")
            return
        if case.value("rank_silent", "failed_ranks"):
            yield opposes(STRONG, "a rank exited with an error")
        elif case.value("rank_silent", "ranks_that_lost_a_peer"):
            yield opposes(STRONG, "its peers lost the connection to it: the process is gone")
        elif (case.value("rank_silent", "silent_ranks") or 0) < case.world:
            yield supports(FAIR, f"{case.who('rank_silent')} is silent, but its peers are still connected to it")
        else:
            yield opposes(SLIGHT, f"all {case.world} ranks are silent")
        if not silent.is_open and silent.last.state == "resolved":
            yield supports(STRONG, "its heartbeats came back: the process was only stopped")

    def advise(self, case: Case) -> Advice:
        rule = "job_stalled" if case.found("job_stalled") else "rank_silent"
        stalled = case.finding("job_stalled")
        is_data = stalled is not None and stalled.phase == "data"
        return Advice(
            first_fix=f"get the stack of {case.who(rule)} with `py-spy dump --pid PID`, and its state with ps",
            code="loader = DataLoader(dataset, num_workers=4, timeout=60)  # a worker that hangs raises"
            if is_data
            else "",
            avoid="do not wait or only raise the timeout: hung jobs do not recover",
            verify="the stack shows what it waits for; after a restart the run gets past this step",
        )
