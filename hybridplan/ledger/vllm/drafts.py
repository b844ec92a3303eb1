"""What a drafter asks of the cache: slots ahead, hashes that look ahead, which groups are its own.

Source: vLLM ``config/vllm.py`` (``num_lookahead_tokens``, ``num_prefill_lookahead_tokens``,
``num_hash_lookahead_tokens``), ``config/speculative.py``, and the EAGLE flags of
``v1/core/kv_cache_planning.py`` (0.32: ``_annotate_eagle_groups``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.vllm.groups import CacheGroup
from hybridplan.ledger.vllm.layer_specs import ModelLayers
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import LayerCache
from hybridplan.ledger.vllm.rules import VersionRules

_READS_TARGET = ("mtp", "eagle", "eagle3", "dflash", "dspark")
_DROPS = ("mtp", "eagle", "eagle3")


@dataclass(frozen=True, slots=True)
class DraftReads:
    """Tokens a drafter needs beyond those scheduled.

    ``slot_tokens``: KV slots reserved past them; ``prefill_tokens``: prompt tokens it reads ahead;
    ``hash_tokens``: tokens after a block that its hash covers (0: last block dropped instead, or
    nothing); ``drops``: the EAGLE drop of the last block is configured.
    """

    draft_tokens: int = 0
    slot_tokens: int = 0
    prefill_tokens: int = 0
    hash_tokens: int = 0
    drops: bool = False


def draft_reads(
    rules: VersionRules, deployment: Deployment, options: VllmOptions, found: ModelLayers
) -> DraftReads:
    """Resolve them for n = ``deployment.drafts`` tokens of ``options.draft_method``."""
    n = deployment.drafts
    method = options.draft_method
    if not n:
        return DraftReads()
    slots = prefill = 0
    if method in (*_READS_TARGET, "draft_model"):
        slots = n + 1 if method in ("dflash", "dspark") else n
    if method in _READS_TARGET:
        several = method == "mtp" and min(found.draft_modules, n) > 1
        prefill = n if several else 1
    drops = options.block_drop and method in _DROPS
    if not rules.lookahead_hashes:
        drops = options.block_drop and method in _READS_TARGET
    hashes = 0
    if rules.lookahead_hashes and drops and options.lookahead_hashes and found.prefix_caching:
        hashes = prefill
    return DraftReads(n, slots, prefill, hashes, drops)


def flag_draft_groups(
    groups: Sequence[CacheGroup],
    layers: Mapping[str, LayerCache],
    rules: VersionRules,
    options: VllmOptions,
    reads: DraftReads,
) -> tuple[CacheGroup, ...]:
    """Mark the groups that hold draft layers (0.33), or the MTP's last layer (0.32)."""
    if not reads.drops:
        return tuple(groups)
    if rules.flags_drafts_by_layer:
        drafted = {name for name, cache in layers.items() if cache.draft}
    else:
        drafted = {list(layers)[-1]} if options.draft_method == "mtp" else set()
    return tuple(replace(group, draft=not drafted.isdisjoint(group.layers)) for group in groups)
