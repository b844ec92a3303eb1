"""What differs between vLLM versions, as one set of switches per version.

Sources: vLLM 0.32.0 and 0.33.0; "older" is what boot logs of earlier releases agree with (block
alignment of 16 or 64 tokens, no prefill checkpoints), "oldest" those before 0.20.2, whose token
count meant something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hybridplan.errors import InputError


@dataclass(frozen=True, slots=True)
class VersionRules:
    """Switches of one version.

    ``aligns_to_checkpoints``: a hybrid block is a multiple of the state layers' checkpoint
    alignment. ``gdn_checkpoints`` / ``other_checkpoints``: Gated DeltaNet / Mamba-2 and KDA export
    a state inside a prefill, for one more block per request. ``lookahead_hashes``: block hashes
    cover the tokens a draft reads ahead instead of dropping the last block.
    ``flags_drafts_by_layer``: groups are marked as the draft's by each layer, not by position.
    ``mla_block_tokens``: granularity of a hybrid MLA model's block. ``flashinfer_block_tokens``:
    FlashInfer's smallest kernel block for alignment. ``replayssm_extends_groups``: the B ring
    repeats groups over ranks. ``counts_blocks_per_group``: "GPU KV cache size" is blocks over
    groups x block instead of concurrency x max_model_len. ``guards_step_budget``: start-up fails
    where a hybrid block is larger than max_num_batched_tokens. ``reserves_null_block``: the fit
    check takes the null block off first. ``kv_is_model_dtype``: a 16-bit KV dtype must be the
    model's. ``unserved``: architectures without a model class.
    ``keeps_every_state``: knows ``mamba_cache_mode="all"``.
    """

    version: str
    aligns_to_checkpoints: bool = False
    gdn_checkpoints: bool = False
    other_checkpoints: bool = True
    lookahead_hashes: bool = False
    flags_drafts_by_layer: bool = False
    mla_block_tokens: int = 128
    flashinfer_block_tokens: int = 16
    replayssm_extends_groups: bool = True
    glm_fp8_on_sm100: bool = False
    counts_blocks_per_group: bool = False
    guards_step_budget: bool = False
    reserves_null_block: bool = True
    kv_is_model_dtype: bool = False
    unserved: frozenset[str] = frozenset()
    keeps_every_state: bool = False


# Architectures of published hybrids that the model registry of 0.32 and 0.33 lacks or has dropped.
_UNSERVED = frozenset(
    f"{name}ForCausalLM"
    for name in (
        "BailingMoeLinearV2",
        "Bamba",
        "Hymba",
        "Lfm3",
        "MiniMaxM1",
        "MiniMaxText01",
        "Phi4Flash",
        "Plamo2",
        "RWKV7",
        "RecurrentGemma",
    )
)
_OLDER = VersionRules(
    "older",
    other_checkpoints=False,
    mla_block_tokens=64,
    flashinfer_block_tokens=64,
    replayssm_extends_groups=False,
    guards_step_budget=True,
    reserves_null_block=False,
    keeps_every_state=True,
)
RULES = {
    "0.33": VersionRules(
        "0.33",
        aligns_to_checkpoints=True,
        gdn_checkpoints=True,
        lookahead_hashes=True,
        flags_drafts_by_layer=True,
        glm_fp8_on_sm100=True,
        kv_is_model_dtype=True,
        unserved=_UNSERVED,
    ),
    "0.32": VersionRules("0.32", replayssm_extends_groups=False, unserved=_UNSERVED),
    "older": replace(_OLDER, version="older"),
    "oldest": replace(_OLDER, version="oldest", counts_blocks_per_group=True),
}
NEWEST = "0.33"
_FIRST_READ = 32
_NEW_COUNT = (20, 2)


def rules_of(version: str) -> VersionRules:
    """The rules of "0.33.0", "0.32", "0.28.1rc1.dev524", "older", "oldest" or "" (the newest).

    Releases before 0.32 are read as "older", those before 0.20.2 as "oldest": rules taken from
    logs, not from the engine. Raises InputError for a version whose rules are not known.
    """
    text = (version or NEWEST).removeprefix("v")
    if text in RULES:
        return RULES[text]
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is not None:
        major, minor, patch = (int(part or 0) for part in found.groups())
        if f"{major}.{minor}" in RULES:
            return RULES[f"{major}.{minor}"]
        if major == 0 and minor < _FIRST_READ:
            return RULES["older" if (minor, patch) >= _NEW_COUNT else "oldest"]
    raise InputError(
        f"vLLM {version} is not modelled; known are {', '.join(RULES)} (older and oldest: what "
        "releases from 0.20.2, and before it, logged)"
    )
