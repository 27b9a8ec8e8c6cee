"""A rank's process is there but does not get on: stopped, in a deadlock, or waiting for what does not come."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.diagnosis_record import Advice

WAITS = {
    "data": "waits for its data",
    "other": "is in code of its own, outside of the step",
    "forward": "is in its forward",
    "backward": "is in its backward",
    "optimizer": "is in its optimizer",
}


class RankHung(Cause):
    """Everyone waits for one."""

    id = "rank_hung"
    title = "a rank hangs"
    explains = frozenset({"job_stalled", "rank_silent", "throughput_regression"})

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """Who is behind, and whether the connections to it hold."""
        stalled, silent = case.finding("job_stalled"), case.episode("rank_silent")
        if stalled is not None:
            seconds = case.value("job_stalled", "seconds") or 0.0
            yield supports(FAIR, f"no step ended for {seconds:.0f} s, while every process sent heartbeats")
            if stalled.ranks and stalled.phase in WAITS:
                yield supports(STRONG, f"{case.who('job_stalled')} {WAITS[stalled.phase]}; the others wait for it")
            elif stalled.ranks:
                yield supports(STRONG, f"{case.who('job_stalled')} is a step behind; the others wait for it")
        if silent is None:
            if stalled is None and case.is_quiet("job_stalled"):
                yield opposes(STRONG, "every process is heard, and steps go on")
            return
        if case.value("rank_silent", "failed_ranks"):
            yield opposes(STRONG, "a rank left with an error")
        elif case.value("rank_silent", "ranks_that_lost_a_peer"):
            yield opposes(STRONG, "its peers lost their connection to it: the process is gone, it does not hang")
        elif (case.value("rank_silent", "silent_ranks") or 0) < case.world:
            yield supports(FAIR, f"{case.who('rank_silent')} is silent, but its peers' connections to it hold")
        else:
            yield opposes(SLIGHT, "all ranks are silent, not one of them")
        if not silent.is_open and silent.last.state == "resolved":
            yield supports(STRONG, "it was heard again afterwards: the process had only stopped")

    def advise(self, case: Case) -> Advice:
        """Ask the process where it stands."""
        rule = "job_stalled" if case.found("job_stalled") else "rank_silent"
        stalled = case.finding("job_stalled")
        is_data = stalled is not None and stalled.phase == "data"
        return Advice(
            first_fix=f"ask the process of {case.who(rule)} where it stands: py-spy dump --pid PID; ps for its state",
            code="loader = DataLoader(dataset, num_workers=4, timeout=60)  # a worker that hangs raises"
            if is_data
            else "",
            avoid="do not wait: hung jobs do not come back by themselves; and do not only raise the timeout",
            verify="the stack names what it waits for; the run passes this step after a restart",
        )
