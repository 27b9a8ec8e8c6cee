"""Nothing balances the load of the experts: those that get tokens improve, and so get more."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice


class RouterUnbalanced(Cause):
    """A router without load balancing."""

    id = "router_unbalanced"
    title = "router without load balancing"
    explains = STANDS_STILL | {"expert_collapse", "frozen_parameters", "gradient_vanishing"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        entropy = case.value("expert_collapse", "entropy")
        if entropy is None:
            yield opposes(DECISIVE, "no router is known to use few of its experts")
            return
        yield supports(DECISIVE, f"entropy of the experts' shares of tokens is {entropy:.2f}: 1 would be equal shares")
        dead = case.value("expert_collapse", "dead")
        if dead:
            yield supports(FAIR, f"{100 * dead:.0f} % of the experts got no token in a whole window")
        if case.came_first("expert_collapse"):
            yield supports(FAIR, "it was found before anything else")
        elif case.found("lr_too_high", "divergence", "non_finite"):
            yield opposes(FAIR, "the run was unstable before the router collapsed")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="add the load-balancing loss to the loss with a coefficient of 0.01, or raise the one it has",
            code="loss = loss + 0.01 * balancing_loss  # transformers: output_router_logits=True, router_aux_loss_coef",
            avoid="do not add experts: the router uses few of those it has",
            verify="the entropy of the experts' shares is above 0.8 after 500 steps",
        )
