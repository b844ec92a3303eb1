"""Weight bytes of one rank: the ledger's components, cut the way engines cut them."""

from __future__ import annotations

from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.figure import Figure, Input
from hybridplan.ledger.weights import weights

_WHOLE_ON_EVERY_RANK = ("norms", "routers")
_AT_THE_ENDS = ("embeddings", "head")


def rank_weights(spec: ModelSpec, deployment: Deployment) -> Figure:
    """Bytes on the fullest rank: matrices cut over tp, layers over pp, small vectors repeated.

    Embedding and head are counted on one stage together without pipelining, apart with it. Draft
    layers count only when drafting. The vision tower is not counted.
    """
    tp, pp = deployment.tp, deployment.pp
    sizes = {part.name: part.bytes for part in weights(spec).components}
    if not deployment.drafts:
        sizes.pop("draft", None)
    ends = [sizes.pop(name, 0) for name in _AT_THE_ENDS]
    end = max(ends) if pp > 1 else sum(ends)
    whole = sum(sizes.pop(name, 0) for name in _WHOLE_ON_EVERY_RANK)
    cut = sum(sizes.values())
    value = -(-cut // (tp * pp)) + -(-end // tp) + -(-whole // pp)
    return Figure(
        name="weights",
        value=value,
        unit="bytes",
        formula="cut / (tp x pp) + ends / tp + repeated / pp",
        inputs=(
            Input("cut", cut, "components of the ledger, in the stored quantisation", "derived"),
            Input("ends", end, "embedding and output head", "derived"),
            Input("repeated", whole, "norms and routers", "derived"),
            Input("tp", tp, "--tp"),
            Input("pp", pp, "--pp"),
        ),
        how="derived",
        source="set it with --weights-memory ('Model loading took' in the boot log)",
    )
