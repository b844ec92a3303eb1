"""Which state-caching strategy SGLang picks, and how many slots one request may hold.

Source: SGLang 0.5.23, ``_mamba_radix_cache_resolution`` (arg_groups/overrides.py) and
``_mamba_slots_ratio`` (mem_cache/kv_cache_configurator.py).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from hybridplan.errors import InputError

Strategy: TypeAlias = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]
STRATEGIES: dict[str, Strategy] = {name: name for name in get_args(Strategy)}

EXTRA_BUFFER_ARCHITECTURES = frozenset(
    {
        "KimiLinearForCausalLM",
        "KimiK3ForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen4ExpForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "Glm5NextForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "InklingForConditionalGeneration",
    }
)
_CHUNK_TOKENS = 64
"""FLA's chunk, which models without `mamba_chunk_size` are served with."""
_CHUNK_OF_TYPE = {
    "nemotron_h": 256,
    "nemotron_h_puzzle": 256,
    "falcon_h1": 256,
    "granitemoehybrid": 256,
}
_CHUNK_ALWAYS = {"lfm2": 1, "lfm2_moe": 1, "mamba": 256, "falcon_mamba": 256}


def state_chunk_tokens(model_type: str, stated_tokens: int | None) -> int:
    """Tokens between the states a prefill can give: `mamba_chunk_size` of the model's config.

    ``stated_tokens`` is what its file says. Defaults are those of SGLang 0.5.23's config classes
    (configs/nemotron_h.py, falcon_h1.py, granitemoehybrid.py, lfm2.py, mamba.py), and 64 where
    none has the field (``mamba_cache_chunk_size``, arg_groups/overrides.py).
    """
    if model_type in _CHUNK_ALWAYS:
        return _CHUNK_ALWAYS[model_type]
    return stated_tokens or _CHUNK_OF_TYPE.get(model_type, _CHUNK_TOKENS)


def resolve_strategy(asked: str, architecture: str, *, overlap: bool, page_tokens: int) -> Strategy:
    """The strategy behind ``--mamba-radix-cache-strategy`` (``auto`` as the engine resolves it).

    Raises InputError for an unknown name, or for ``no_buffer`` with pages of more than one token.
    """
    if asked == "auto":
        wants = overlap or page_tokens > 1
        if wants and architecture in EXTRA_BUFFER_ARCHITECTURES:
            return "extra_buffer"
        asked = "no_buffer"
    if asked not in STRATEGIES:
        raise InputError(
            f"strategy {asked!r} is not known; known are auto, {', '.join(STRATEGIES)}"
        )
    strategy = STRATEGIES[asked]
    if strategy == "no_buffer" and page_tokens != 1:
        raise InputError(
            f"strategy no_buffer needs page size 1 and the page size is {page_tokens}; "
            "set --page-size 1 or a strategy with extra buffers"
        )
    return strategy


def tracking_slots(strategy: Strategy, *, overlap: bool) -> int:
    """Slots a request holds besides its live one, for states on their way into the tree."""
    if strategy == "no_buffer":
        return 0
    if strategy == "extra_buffer_lazy":
        return 1
    return 2 if overlap else 1


def slots_per_request(
    strategy: Strategy, *, overlap: bool, radix_cache: bool, skip_decode_lock: bool = False
) -> int:
    """State slots the engine reserves per running request: 3, 4 or 5; 1 without a radix cache."""
    if not radix_cache:
        return 1
    slots = 3 + tracking_slots(strategy, overlap=overlap)
    return slots - 1 if skip_decode_lock and strategy != "no_buffer" else slots
