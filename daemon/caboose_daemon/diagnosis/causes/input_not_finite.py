"""NaN or infinity is in the data: a missing value, a broken file, a division in the preprocessing."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import curves, model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice


class InputNotFinite(Cause):
    """A batch with NaN or infinite elements."""

    id = "input_not_finite"
    title = "NaN or infinity in a batch"
    is_plain = True
    explains = BREAKS | {"bad_batch", "rank_outlier", "loss_scale_collapse"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding = case.finding("non_finite")
        if finding is None:
            yield opposes(STRONG, "all numbers were finite")
            return
        for hunt in case.hunts[:1]:
            if hunt.where == "input":
                yield supports(DECISIVE, f"NaN hunt: {hunt.summary}")
            elif hunt.is_run:
                yield opposes(STRONG, f"NaN hunt found the inputs finite: {hunt.summary}")
        bad = finding.values.get("bad_inputs")
        if finding.phase == "input":
            many = f"{bad:,.0f} elements of the batch" if bad else "elements of the batch"
            where = f" on rank {finding.ranks[0]}" if finding.ranks else ""
            yield supports(DECISIVE, f"{many}{where} were not finite at step {finding.onset_step:,}")
        elif seen := case.most("bad_batch", "bad_elements"):
            yield supports(DECISIVE, f"a batch had {seen:,.0f} elements that were not finite")
        elif bad == 0 and model_facts.has_real_targets(case) and not finding.values.get("loss_is_infinite"):
            yield supports(FAIR, f"the inputs of step {finding.onset_step:,} were finite; its real targets may not be")
        elif bad == 0:
            yield opposes(DECISIVE, f"all elements of the batch of step {finding.onset_step:,} were finite")
        elif finding.layers or finding.phase in ("backward", "update"):
            yield opposes(FAIR, f"started in the {finding.phase}, not at the input")
        elif case.world > 1 and len(finding.ranks) == 1:
            text = f"only rank {finding.ranks[0]} of {case.world} is affected, with the same weights as the others"
            yield supports(STRONG, f"{text}: its data differs")
        elif bad is None and "loss_is_infinite" in finding.values and not finding.values["loss_is_infinite"]:
            yield supports(SLIGHT, "the loss became NaN from one step to the next, and the batch was not seen")
        growing = curves.growth_before_nan(case)
        if growing is not None:
            yield opposes(STRONG, growing.text)
        elif case.found("gradient_explosion", "divergence", "lr_too_high"):
            yield opposes(FAIR, "the run was unstable before the first NaN or infinity")

    def advise(self, case: Case) -> Advice:
        batch = case.value("bad_batch", "last_batch")
        which = f"batch {batch:g}" if batch is not None else f"the batch of step {case.onset:,}"
        finding = case.finding("non_finite")
        on = f" of rank {finding.ranks[0]}" if finding is not None and len(finding.ranks) == 1 else ""
        for hunt in (hunt for hunt in case.hunts[:1] if hunt.where == "input"):
            number = "the batch" if hunt.batch is None else f"batch {hunt.batch}"
            word = "samples" if "," in hunt.samples else "sample"
            which, on = f"{f'{word} {hunt.samples} of ' if hunt.samples else ''}{number}", f" of rank {hunt.rank}"
        return Advice(
            first_fix=f"inspect {which}{on}, fix or drop its samples and resume from a checkpoint before it",
            code="assert torch.isfinite(batch).all()  # in the dataset's __getitem__, with the sample's name",
            avoid="do not lower the learning rate or replay the same batches: the NaN is in the data",
            verify="a pass over the dataset finds only finite elements",
        )
