"""Nothing holds the scale of the embedding or of the output layer: the loss does not see it, so it drifts."""

from collections.abc import Iterator

from caboose_daemon.diagnosis.case import Case
from caboose_daemon.diagnosis.cause import DECISIVE, FAIR, SLIGHT, Cause, Evidence, opposes, supports
from caboose_daemon.incidents.causal_links import BREAKS
from caboose_daemon.incidents.diagnosis_record import Advice


class LogitsDrift(Cause):
    """Embedding or output layer without anything that holds its scale."""

    id = "logits_drift"
    title = "scale of embedding or logits is not held"
    explains = BREAKS | {"embedding_growth", "plateau", "activation_collapse"}

    def weigh(self, case: Case) -> Iterator[Evidence]:
        finding, growth = case.finding("embedding_growth"), case.value("embedding_growth", "growth")
        if finding is None or growth is None:
            yield opposes(DECISIVE, "embedding and output layer are not known to outgrow the rest")
            return
        layer = finding.layers[0] if finding.layers else "embedding or output layer"
        yield supports(DECISIVE, f"{layer} grew {growth:.3g}x as much as the other matrices")
        if case.came_first("embedding_growth"):
            yield supports(FAIR, "it was found before anything else")
        if not case.hyper("weight_decay"):
            yield supports(SLIGHT, "no weight decay")

    def advise(self, case: Case) -> Advice:
        return Advice(
            first_fix="add a z-loss on the output logits; for an embedding, check the learning rate of its group",
            code="loss = loss + 1e-4 * logits.float().logsumexp(-1).square().mean()",
            avoid="do not lower the learning rate of the whole model: one layer drifts",
            verify="the layer's typical weight grows no faster than that of the other matrices",
        )
