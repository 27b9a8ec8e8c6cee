"""NaN or infinity is in the data itself: a missing value, a broken file, a division in the preprocessing."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import growth
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice


class InputNotFinite(Cause):
    """A batch with elements that are no numbers."""

    id = "input_not_finite"
    title = "NaN or infinity in a batch"
    explains = BREAKS | {"bad_batch", "rank_outlier", "loss_scale_collapse"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The batch itself where it was looked at; else whether one rank alone went wrong with the same weights."""
        finding = case.finding("non_finite")
        if finding is None:
            yield opposes(STRONG, "no number was NaN or infinite")
            return
        for hunt in case.hunts[:1]:
            if hunt.where == "input":
                yield supports(DECISIVE, f"a hunt found: {hunt.summary}")
            elif hunt.is_run:
                yield opposes(STRONG, f"a hunt found the inputs finite: {hunt.summary}")
        bad = finding.values.get("bad_inputs")
        if finding.phase == "input":
            many = f"{bad:g} elements of the batch" if bad else "elements of the batch"
            where = f" on rank {finding.ranks[0]}" if finding.ranks else ""
            yield supports(DECISIVE, f"{many}{where} were not finite at step {finding.onset_step}")
        elif bad == 0:
            yield opposes(DECISIVE, f"every element of the batch of step {finding.onset_step} was finite")
        elif finding.layers or finding.phase in ("backward", "update"):
            yield opposes(FAIR, f"it began in the {finding.phase}, not at the input")
        elif case.world > 1 and len(finding.ranks) == 1:
            yield supports(
                STRONG,
                f"rank {finding.ranks[0]} of {case.world} alone went wrong, though all have the same weights:"
                " its data differ",
            )
        growing = growth.before_break(case)
        if growing is not None:
            yield opposes(STRONG, growing.text)
        elif case.found("gradient_explosion", "divergence", "lr_too_high"):
            yield opposes(FAIR, "the run was unstable before a number broke")

    def advise(self, case: Case) -> Advice:
        """Find it, and keep it out."""
        batch = case.value("bad_batch", "last_batch")
        which = f"batch {batch:g}" if batch is not None else f"the batch of step {case.onset}"
        finding = case.finding("non_finite")
        on = f" of rank {finding.ranks[0]}" if finding is not None and len(finding.ranks) == 1 else ""
        for hunt in (hunt for hunt in case.hunts[:1] if hunt.where == "input"):
            number = "the batch" if hunt.batch is None else f"batch {hunt.batch}"
            word = "samples" if "," in hunt.samples else "sample"
            which, on = f"{f'{word} {hunt.samples} of ' if hunt.samples else ''}{number}", f" of rank {hunt.rank}"
        return Advice(
            first_fix=f"look at {which}{on}, repair or drop its samples, and go back to a checkpoint from before it",
            code="assert torch.isfinite(batch).all()  # in the data set's __getitem__, with the sample's name",
            avoid="do not lower the learning rate, and do not replay the same batches: NaN goes in at any rate",
            verify="a pass over the data set alone finds no element that is not finite",
        )
