"""The block vllm-ascend aligns hybrid models to, which is not vLLM's own.

Source: vllm-ascend#15408, #13853 and #16261: its states stand in a page of their own, and the
recurrent state alone (no convolution window) must fit the keys of a block; blocks are whole kernel
blocks of 128 tokens. A later release counts keys and values.
"""

from __future__ import annotations

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.vllm.alignment import Alignment, align
from hybridplan.ledger.vllm.backends import Backend
from hybridplan.ledger.vllm.page import MultipleOf
from hybridplan.ledger.vllm.rules import rules_of

KERNEL_BLOCK_TOKENS = 128
_BACKEND = Backend("ASCEND", (MultipleOf(KERNEL_BLOCK_TOKENS),))


def ascend_alignment(spec: ModelSpec, deployment: Deployment, *, keys_only: bool) -> Alignment:
    """Block and padding on one rank; ``keys_only`` False counts values too.

    Raises InputError for a model without K and V heads or without recurrent states.
    """
    layers = model_caches(spec, deployment)
    states = [state.bytes for layer in layers for state in layer.states if state.name == "state"]
    kv = [cache for layer in layers for cache in layer.tokens if cache.name == "kv"]
    if not states or not kv:
        raise InputError(f"{spec.name} has no recurrent state beside K and V heads to align")
    width = kv[0].key_dim + (0 if keys_only else kv[0].value_dim)
    return align(
        [_BACKEND],
        token_bytes=kv[0].heads * width * element_bytes(kv[0].dtype),
        state_bytes=max(states),
        mla=False,
        mode="none",
        rules=rules_of("older"),
        max_model_len=spec.max_tokens or KERNEL_BLOCK_TOKENS,
    )
