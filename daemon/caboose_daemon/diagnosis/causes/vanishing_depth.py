"""Each layer passes only a part of the gradient, and there are too many of them in a row."""

from collections.abc import Iterator

from caboose_daemon.diagnosis import anatomy
from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import FAIR, SLIGHT, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice

DEEP = 6


class VanishingDepth(Cause):
    """Depth without skips or norms, mostly with sigmoid or tanh."""

    id = "vanishing_depth"
    title = "the gradient vanishes in the depth of the net"
    explains = STANDS_STILL | {"gradient_vanishing", "lr_too_low", "frozen_parameters"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """How far the gradient falls, over how many layers of what kind."""
        first, last = case.value("gradient_vanishing", "first_rms"), case.value("gradient_vanishing", "last_rms")
        if first is None or last is None:
            if case.is_quiet("gradient_vanishing") and case.sees("gradients"):
                yield opposes(STRONG, "gradients reach the first layers")
            return
        depth = anatomy.depth(case)
        yield supports(
            STRONG, f"the gradient falls from {last:.1e} to {first:.1e} per element over {depth} weight matrices"
        )
        flat = sorted(anatomy.kinds(case) & set(anatomy.FLAT))
        if flat and depth >= DEEP:
            part = "at most a quarter" if "sigmoid" in flat else "less than all"
            yield supports(FAIR, f"each {flat[0]} passes {part} of it")
        if anatomy.has_norms(case):
            yield opposes(SLIGHT, "norm layers are there")
        elif depth >= DEEP:
            yield supports(SLIGHT, "no norm layer makes up for it")
        if case.found("saturation"):
            yield opposes(FAIR, "units are saturated: that alone would stop it")
        if case.found("dead_units", "activation_collapse"):
            yield opposes(FAIR, "units are dead or have collapsed: that alone would stop it")
        ratio = anatomy.init_ratio(case)
        if ratio is not None and ratio[1] > 2.5:
            yield opposes(FAIR, f"initial weights are {ratio[1]:.2g} times He's rule: that alone would do it")

    def advise(self, case: Case) -> Advice:
        """Skips, norms, and activations that pass the gradient."""
        return Advice(
            first_fix="replace sigmoid or tanh inside the net by ReLU or GELU, with a norm layer and a skip per block",
            code="x = x + F.gelu(linear(norm(x)))  # was x = torch.sigmoid(linear(x))",
            avoid="do not raise the learning rate or train longer: the last layers break before the first ones move",
            verify="the first layer's gradient per element is within a factor of 100 of the last one's",
        )
