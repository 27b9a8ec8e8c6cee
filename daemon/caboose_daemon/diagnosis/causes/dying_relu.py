"""ReLU units were pushed to where no input makes them fire; without a gradient they stay there."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import anatomy
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class DyingRelu(Cause):
    """Units with a bias or weights so negative that they are silent for every sample."""

    id = "dying_relu"
    title = "ReLU units have died"
    explains = STANDS_STILL | {"dead_units", "frozen_parameters", "gradient_vanishing", "activation_collapse"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The share of dead units, whether it grew, and what could have killed them."""
        share = case.value("dead_units", "share")
        finding = case.finding("dead_units")
        if share is None or finding is None:
            if anatomy.shows_dead_units(case):
                yield opposes(STRONG, "no layer has many dead units")
            lost = anatomy.loses_gradient_at(case)
            if lost is not None and anatomy.kinds(case) & set(anatomy.RECTIFIED):
                yield supports(STRONG, f"layers under ReLUs lost their gradient at step {lost}, to the last bit")
            return
        place = finding.layers[0] if finding.layers else "a layer"
        yield supports(FAIR, f"{share:.0%} of the units of {place} fire for no sample")
        if finding.severity == "critical":
            yield supports(STRONG, "more of them died while it trained")
        if anatomy.kinds(case) & set(anatomy.RECTIFIED) and not anatomy.has_norms(case):
            yield supports(SLIGHT, "no norm layer keeps what goes into the ReLUs centred")
        if case.found("lr_too_high", "divergence", "loss_spike", "gradient_explosion"):
            yield opposes(FAIR, "steps that were too large would have killed them")

    def advise(self, case: Case) -> Advice:
        """Units that cannot die, or inputs that keep them alive."""
        finding = case.finding("dead_units")
        place = finding.layers[0] if finding is not None and finding.layers else "the layer"
        lr = case.lr
        rate = f"; or lr={lr / 10:.2g} in place of {lr:.2g}" if lr else ""
        return Advice(
            first_fix=f"set the biases below {place} to zero and put a norm or a LeakyReLU there{rate}",
            code="nn.Sequential(nn.Linear(n, m), nn.LayerNorm(m), nn.LeakyReLU(0.01))  # was nn.ReLU()",
            avoid="do not widen the layer or train longer: a dead unit gets no gradient, however long",
            verify=f"fewer than 40 % of the units of {place} are dead after 200 steps",
        )
