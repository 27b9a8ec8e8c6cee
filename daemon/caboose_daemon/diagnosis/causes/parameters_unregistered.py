"""Parameters that no optimizer holds: made, or replaced, after it was."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import Cause
from caboose_daemon.diagnosis.evidence import DECISIVE, FAIR, STRONG, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.lasting_rule import named


class ParametersUnregistered(Cause):
    """The optimizer does not know them."""

    id = "parameters_unregistered"
    title = "parameters that no optimizer holds"
    explains = STANDS_STILL | {"frozen_parameters", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        """The layer table says it outright."""
        missing = [layer for layer in case.layers if layer.trainable and not layer.held]
        if not missing:
            text = (
                "an optimizer holds every trainable layer" if case.layers else "no layer was seen without an optimizer"
            )
            yield opposes(STRONG, text)
            return
        size = sum(layer.numel for layer in missing)
        whole = sum(layer.numel for layer in case.layers if layer.trainable)
        text = f"{len(missing)} trainable layers are with no optimizer: {named([layer.name for layer in missing])}"
        yield supports(DECISIVE, f"{text} ({size / max(1, whole):.1%} of what should be trained)")
        if case.found(*STANDS_STILL) and size < 0.01 * whole:
            yield opposes(FAIR, "they are too small a part to hold the whole run up")

    def advise(self, case: Case) -> Advice:
        """Make the optimizer last."""
        missing = [layer.name for layer in case.layers if layer.trainable and not layer.held]
        module = missing[0].rsplit(".", 1)[0] if missing else "head"
        return Advice(
            first_fix="make the optimizer after the model is complete, or add the new parameters to it",
            code=f'optimizer.add_param_group({{"params": model.get_submodule({module!r}).parameters()}})',
            avoid="do not train longer or raise the learning rate: these parameters never take a step",
            verify="the run no longer names them, and their update is above zero",
        )
