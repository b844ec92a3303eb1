"""What differs between vLLM versions, as one set of switches per version.

Sources: vLLM 0.32.0 and 0.33.0; "older" is what boot logs of releases before 0.20.2 agree with
(block alignment of 16 or 64 tokens, no prefill checkpoints, the first meaning of the token count).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    model's.
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


RULES = {
    "0.33": VersionRules(
        "0.33",
        aligns_to_checkpoints=True,
        gdn_checkpoints=True,
        lookahead_hashes=True,
        flags_drafts_by_layer=True,
        glm_fp8_on_sm100=True,
        kv_is_model_dtype=True,
    ),
    "0.32": VersionRules("0.32", replayssm_extends_groups=False),
    "older": VersionRules(
        "older",
        other_checkpoints=False,
        mla_block_tokens=64,
        flashinfer_block_tokens=64,
        replayssm_extends_groups=False,
        counts_blocks_per_group=True,
        guards_step_budget=True,
        reserves_null_block=False,
    ),
}
NEWEST = "0.33"


def rules_of(version: str) -> VersionRules:
    """The rules of "0.33", "0.33.0", "0.32.1", "older" or "" (the newest).

    Raises InputError for a version whose rules are not known.
    """
    text = (version or NEWEST).removeprefix("v")
    key = ".".join(text.split(".")[:2])
    if key not in RULES:
        raise InputError(
            f"vLLM {version} is not modelled; known are {', '.join(RULES)} (older: what releases "
            "before 0.20.2 logged)"
        )
    return RULES[key]
