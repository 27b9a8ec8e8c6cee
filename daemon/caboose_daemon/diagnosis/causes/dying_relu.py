"""ReLU units were pushed to where they are zero for every input; without a gradient they stay there."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import model_facts
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import FAIR, SLIGHT, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.diagnosis.causes.parameters_frozen import zero_gradients
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

LARGE_UPDATE = 3e-2
"""Update-to-weight ratio of steps that are too large for any unit."""


class DyingRelu(Cause):
    """ReLU units that are zero for every sample."""

    id = "dying_relu"
    title = "dying ReLUs"
    is_plain = True
    explains = STANDS_STILL | {"dead_units", "frozen_parameters", "gradient_vanishing", "activation_collapse"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        share = case.value("dead_units", "share")
        finding = case.finding("dead_units")
        if model_facts.has_constant_inputs(case):
            yield opposes(STRONG, "the inputs never change: units without variation show nothing")
        weights = model_facts.init_ratio(case)
        if weights is not None and weights[1] < model_facts.NO_INIT:
            yield opposes(STRONG, f"initial weights were at most {weights[1]:.2g}x those of He initialisation")
        if case.value("config_advice", "large_inputs"):
            yield opposes(STRONG, "inputs are far from normalised: such values kill units")
        has_relu = bool(model_facts.kinds(case) & set(model_facts.RECTIFIED))
        if has_relu and zero_gradients(case) and case.found("frozen_parameters"):
            yield supports(STRONG, "layers below ReLUs have gradients of exactly zero")
        elif share is None and not has_relu and case.modules:
            yield opposes(STRONG, "the model has no ReLU")
        if share is None or finding is None:
            if has_relu and zero_gradients(case):
                return
            if model_facts.would_show_dead_units(case):
                yield opposes(STRONG, "no layer has many dead units")
            lost = model_facts.lost_gradient_at(case)
            if lost is not None and model_facts.kinds(case) & set(model_facts.RECTIFIED):
                yield supports(STRONG, f"layers below ReLUs lost their gradient completely at step {lost:,}")
            return
        place = finding.layers[0] if finding.layers else "a layer"
        yield supports(FAIR, f"{100 * share:.0f} % of the units of {place} are dead")
        if finding.severity == "critical":
            yield supports(STRONG, "the share rose during training")
        if model_facts.kinds(case) & set(model_facts.RECTIFIED) and not model_facts.has_norms(case):
            yield supports(SLIGHT, "no norm layer centres the inputs of the ReLUs")
        if case.found("lr_too_high", "divergence", "loss_spike", "gradient_explosion"):
            yield opposes(FAIR, "the run was unstable: steps that are too large kill units too")
        before = case.update_before
        if before is not None and before.value > LARGE_UPDATE:
            text = f"weights changed by {100 * before.value:.2g} % at step {before.step:,}"
            yield opposes(FAIR, f"{text}: such steps kill units")

    def advise(self, case: Case) -> Advice:
        finding = case.finding("dead_units")
        place = finding.layers[0] if finding is not None and finding.layers else "the layer"
        lr = case.lr
        rate = f", or try lr={lr / 10:.2g} instead of {lr:.2g}" if lr else ""
        return Advice(
            first_fix=f"reset the biases below {place} to zero and use a norm layer or LeakyReLU there{rate}",
            code="block = nn.Sequential(nn.Linear(n, m), nn.LayerNorm(m), nn.LeakyReLU(0.01))  # was nn.ReLU()",
            avoid="do not widen the layer or train longer: a dead unit never gets a gradient",
            verify=f"fewer than 40 % of the units of {place} are dead after 200 steps",
        )
