"""Check 2: the cache of transformers' own implementation against the ledger's account of it."""

from __future__ import annotations

from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.measure import hf
from hybridplan.measure.context import Context
from hybridplan.measure.result import Check, compared

FAMILY = "cache of a real model"


def run(context: Context) -> list[Check]:
    """KV, state and conv bytes after prefills of several lengths."""
    model = hf.build(context, "bfloat16")
    spec = model.spec
    caches = model_caches(spec, Deployment("transformers"))
    lengths = context.pick((100, 1000, 3000), (100, 1000), (5, 37, 70))
    found = []
    measured: dict[int, hf.CacheBytes] = {}
    for tokens in lengths:
        with hf.own_functions(model.module):
            held = hf.prefill(model, tokens)
        measured[tokens] = sizes = hf.cache_bytes(held)
        states = sum(s.bytes for layer in caches for s in layer.states if s.name == "state")
        conv = sum(s.bytes for layer in caches for s in layer.states if s.name == "conv")
        kv = sum(layer.token_bytes(tokens) for layer in caches)
        rest = sum(layer.state_bytes for layer in caches) - states - conv
        want = {"KV": kv, "state": states, "conv": conv, "other": rest}
        got = {"KV": sizes.kv, "state": sizes.state, "conv": sizes.conv, "other": sizes.other}
        for part, predicted in want.items():
            if predicted or got[part]:
                found.append(
                    compared(FAMILY, f"{part} at {tokens:,} tokens", f"{part} bytes of the cache",
                             predicted, got[part], "B", 0.0,
                             f"the ledger's account for engine transformers; {model.what}")
                )  # fmt: skip
        del held
    low, high = lengths[0], lengths[-1]
    rate = sum(layer.token_bytes(high) - layer.token_bytes(low) for layer in caches)
    found.append(
        compared(FAMILY, "KV a token", "growth of the KV cache by one token",
                 rate / (high - low), (measured[high].kv - measured[low].kv) / (high - low),
                 "B/token", 0.0, f"between {low:,} and {high:,} tokens; {model.what}")
    )  # fmt: skip
    return found
