"""Gemma-2 and Gemma-3: sliding windows with a global layer now and then."""

from __future__ import annotations

from hybridplan.config.families import common
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import ModelSpec

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
CONTEXT = {
    "gemma2": Absent(8192, "max_position_embeddings absent: 8,192, the Gemma-2 class's value"),
    "gemma3": Absent(131072, "max_position_embeddings absent: 131,072, the Gemma-3 class's value"),
}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``layer_types``, else every ``sliding_window_pattern``-th layer is global (Gemma-2: 2nd)."""
    kind = str(f.data.get("model_type") or root.data.get("model_type"))
    count = f.layer_count()
    kinds = _layer_kinds(f, count, kind)
    three = kind.startswith("gemma3")
    window = common.sliding(f) if "sliding" in kinds else None
    full, sliding = (
        common.attention(f, quotient=False, qk_norm="head" if three else "none", window=each)
        for each in (None, window)
    )
    mixers = {"full": (full,), "sliding": (sliding,)}
    return common.model(
        f,
        root,
        layers=common.stack(kinds, mixers, [common.dense(f)] * count, norms=4),
        tied_absent=True,
        context_absent=CONTEXT["gemma3" if three else "gemma2"],
    )


def _layer_kinds(f: Fields, count: int, kind: str) -> list[str]:
    by_pattern = None
    keys = [key for key in ("sliding_window_pattern", "_sliding_window_pattern") if f.has(key)]
    if keys:
        pattern = f.whole("model.pattern", *keys, most=1 << 16)
        by_pattern = common.every(count, pattern, pattern - 1, "full", "sliding")
    elif kind == "gemma2" and not f.has("layer_types"):
        f.record("model.pattern", "model_type gemma2: every second layer is global", "assumed")
        by_pattern = common.every(count, 2, 1, "full", "sliding")
    if not f.has("layer_types"):
        if by_pattern is None:
            raise f.missing("layer_types", "sliding_window_pattern")
        return by_pattern
    kinds = common.listed(f, "layer_types", KINDS, count)
    if by_pattern is not None:
        f.agree("the windowed layers", "layer_types", kinds, "sliding_window_pattern", by_pattern)
    return kinds
