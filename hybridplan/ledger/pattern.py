"""The order of a model's layers as a short string: LLLF x 6."""

from __future__ import annotations

from hybridplan.config.spec import Attention, Layer, Mixer

LEGEND = {
    "F": "full attention",
    "f": "attention that reads another layer's KV",
    "S": "sliding-window attention",
    "C": "chunked attention",
    "D": "window plus compressed KV",
    "L": "linear attention",
    "M": "Mamba",
    "R": "gated recurrence",
    "V": "short convolution",
    "G": "gated memory unit",
    "-": "MLP only",
    "E": "experts only",
}
_LETTERS = {
    "mla": "F",
    "compressed": "D",
    "gdn": "L",
    "kda": "L",
    "lightning": "L",
    "state": "L",
    "mamba1": "M",
    "mamba2": "M",
    "rglru": "R",
    "rwkv7": "R",
    "short_conv": "V",
    "ngram_conv": "V",
    "gmu": "G",
}


def mixer_letter(mixer: Mixer) -> str:
    """One letter of LEGEND."""
    if isinstance(mixer, Attention):
        if mixer.kv_source_layer is not None:
            return "f"
        if mixer.window is None:
            return "F"
        return "S" if mixer.window.kind == "sliding" else "C"
    return _LETTERS[mixer.kind]


def layer_sign(layer: Layer) -> str:
    """The layer's letter; two mixers in parallel stand in brackets, as in (F+M)."""
    if not layer.mixers:
        return "E" if layer.mlp is not None and layer.mlp.kind == "moe" else "-"
    letters = [mixer_letter(mixer) for mixer in layer.mixers]
    return letters[0] if len(letters) == 1 else f"({'+'.join(letters)})"


def layer_pattern(layers: tuple[Layer, ...]) -> str:
    """Signs of all layers, folded to ``UNIT x N`` (and a rest) where that is shorter."""
    signs = [layer_sign(layer) for layer in layers]
    best = "".join(signs)
    for unit in range(1, len(signs) // 2 + 1):
        repeats = 1
        while signs[repeats * unit : (repeats + 1) * unit] == signs[:unit]:
            repeats += 1
        if repeats < 2:
            continue
        rest = "".join(signs[repeats * unit :])
        text = f"{''.join(signs[:unit])} x {repeats}" + (f" + {rest}" if rest else "")
        if len(text) < len(best):
            best = text
    return best
