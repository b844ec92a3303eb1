"""Parameters and weight bytes of a model, by component."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from hybridplan.config.spec import Layer, ModelSpec
from hybridplan.ledger.weights.parts import Part, mixer_parts, mlp_parts
from hybridplan.ledger.weights.storage import Storage

__all__ = ["COMPONENTS", "Component", "Weights", "weights"]

COMPONENTS = {
    "embeddings": "token embedding table",
    "head": "output head (absent where tied to the embedding)",
    "attention": "attention mixers, their index and adapters",
    "recurrent": "linear-attention, SSM and convolution mixers",
    "mlp": "dense MLPs",
    "experts": "routed experts",
    "shared_experts": "shared experts and latent projections",
    "routers": "routers",
    "norms": "norms, residual streams and other small vectors",
    "tables": "n-gram and per-layer embedding tables, which may sit in host memory",
    "draft": "next-token-prediction (MTP) layers",
    "vision": "vision tower",
}
_APART = {
    "engram_tables": "tables",
    "per_layer_embeddings": "tables",
    "vision_tower": "vision",
}


@dataclass(frozen=True, slots=True)
class Component:
    """``params`` stored once; ``active_params`` of them meet one token; ``bytes`` as stored.

    ``bytes`` follows the checkpoint's stated quantisation, scales included, rounded up.
    """

    name: str
    params: int
    active_params: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model, on no particular rank.

    ``params`` and ``active_params`` leave draft layers, tables and vision out; ``total_params`` and
    ``total_bytes`` count everything in ``components``. A token meets every weight but the experts
    its router did not choose and, of an untied embedding, all rows but one. ``method`` is the
    checkpoint's quantisation, or the plain dtype.
    """

    components: tuple[Component, ...]
    params: int
    active_params: int
    draft_params: int
    table_params: int
    vision_params: int
    total_params: int
    total_bytes: int
    method: str
    notes: tuple[str, ...] = ()


def weights(spec: ModelSpec) -> Weights:
    """Parameters by component, and the bytes they take as the checkpoint stores them."""
    storage = Storage(spec)
    params = dict.fromkeys(COMPONENTS, 0)
    active = dict.fromkeys(COMPONENTS, 0)
    bits = dict.fromkeys(COMPONENTS, 0.0)

    def add(component: str, part: Part, each_bits: float) -> None:
        params[component] += part.params
        active[component] += part.active
        bits[component] += part.params * each_bits

    table = spec.vocab_size * spec.hidden_size
    row = table if spec.tied_embeddings else spec.hidden_size
    add("embeddings", Part("embeddings", "", table, active_params=row), storage.plain_bits)
    if not spec.tied_embeddings:
        add("head", Part("head", "lm_head", table), storage.head_bits())
    for part in _layer_parts(spec.layers, spec.hidden_size):
        add(part[1].component, part[1], storage.bits(part[1], part[0].index))
    for layer, part_ in _layer_parts(spec.draft_layers, spec.hidden_size):
        draft = layer.index - len(spec.layers)
        add("draft", part_, storage.bits(part_, layer.index, draft))
    for name, count in spec.extra_params.items():
        component = _APART.get(name, "norms")
        looked_up = 0 if name in _APART else count
        add(component, Part(component, name, count, False, looked_up), storage.plain_bits)
    components = tuple(
        Component(name, params[name], active[name], ceil(bits[name] / 8))
        for name in COMPONENTS
        if params[name]
    )
    apart = ("draft", "tables", "vision")
    scheme = spec.quantization
    return Weights(
        components=components,
        params=sum(c.params for c in components if c.name not in apart),
        active_params=sum(c.active_params for c in components if c.name not in apart),
        draft_params=params["draft"],
        table_params=params["tables"],
        vision_params=params["vision"],
        total_params=sum(c.params for c in components),
        total_bytes=sum(c.bytes for c in components),
        method=spec.dtype if scheme is None else scheme.method,
        notes=_notes(spec),
    )


def _layer_parts(layers: tuple[Layer, ...], hidden: int) -> Iterator[tuple[Layer, Part]]:
    """Every part of these layers; a block that several layers share is counted once."""
    seen: set[int] = set()
    for layer in layers:
        again = layer.shared_block in seen
        if layer.shared_block is not None:
            seen.add(layer.shared_block)
        for position, mixer in enumerate(layer.mixers):
            shared = layer.shared_block is not None and position == 0
            for part in mixer_parts(mixer, hidden):
                yield layer, _reused(part) if shared and again else part
        if layer.mlp is not None:
            for part in mlp_parts(layer.mlp, hidden):
                yield layer, _reused(part) if again else part
        yield layer, Part("norms", "norms", layer.norms * hidden, linear=False)
        for name, count in layer.extra_params.items():
            part = _extra(name, count)
            yield layer, _reused(part) if again and name.startswith("shared_") else part


def _reused(part: Part) -> Part:
    """Weights met again: nothing more to store, but a token multiplies them once more."""
    return Part(part.component, part.module, 0, part.linear, part.active)


def _extra(name: str, count: int) -> Part:
    component = "norms"
    if name.startswith("mixer_"):
        component = "attention"
    elif name.startswith("mlp_"):
        component = "mlp"
    return Part(component, name, count, linear=count > 1 << 16)


def _notes(spec: ModelSpec) -> tuple[str, ...]:
    if spec.vision and "vision_tower" not in spec.extra_params:
        return ("the vision or audio tower is not counted",)
    return ()
