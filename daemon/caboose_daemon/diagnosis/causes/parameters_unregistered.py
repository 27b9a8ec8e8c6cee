"""Parameters are in no optimizer: they were created, or replaced, after it."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, STRONG, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import STANDS_STILL
from caboose_daemon.incidents.diagnosis_record import Advice
from caboose_daemon.rules.parts.lasting_rule import named


class ParametersUnregistered(Cause):
    """Trainable parameters that no optimizer updates."""

    id = "parameters_unregistered"
    title = "parameters in no optimizer"
    is_plain = True
    explains = STANDS_STILL | {"frozen_parameters", "lr_too_low"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        missing = [layer for layer in case.layers if layer.trainable and not layer.held]
        if not missing:
            text = "every trainable layer is in an optimizer" if case.layers else "no layer without an optimizer seen"
            yield opposes(STRONG, text)
            return
        size = sum(layer.numel for layer in missing)
        whole = sum(layer.numel for layer in case.layers if layer.trainable)
        text = f"{len(missing)} trainable layers in no optimizer: {named([layer.name for layer in missing])}"
        yield supports(DECISIVE, f"{text} ({100 * size / max(1, whole):.1f} % of the trainable parameters)")
        if case.found(*STANDS_STILL) and size < 0.01 * whole:
            yield opposes(FAIR, "they are under 1 % of the parameters, too few to stop the run")

    def advise(self, case: Case) -> Advice:
        missing = [layer.name for layer in case.layers if layer.trainable and not layer.held]
        module = missing[0].rsplit(".", 1)[0] if missing else "head"
        return Advice(
            first_fix="create the optimizer after the model is complete, or add the new parameters to it",
            code=f'optimizer.add_param_group({{"params": model.get_submodule({module!r}).parameters()}})',
            avoid="do not train longer or raise the learning rate: these parameters are never updated",
            verify="frozen_parameters no longer names them, and their update is above zero",
        )
