"""The bytes of a real transformers cache, against ``--engine transformers``.

For every family that the installed transformers implements: a published config with few layers and
small hidden size, vocabulary and experts, but its own head shapes, is built with random weights and
prefilled on the CPU at three lengths. The same file goes through our reader and account.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hybridplan import Deployment
from hybridplan.config.families import FAMILIES
from hybridplan.config.read import read_config
from hybridplan.ledger.caches import LayerCaches, model_caches

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = Path(__file__).parent.parent.parent / "model_configs"
LENGTHS = (5, 37, 70)
PAGE = Path(__file__).parent.parent.parent / "docs" / "engines" / "transformers.md"
MOST_PARAMETERS = 100_000_000
SMALL = {
    "vocab_size": 128,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "share_expert_dim": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "experts_per_token": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 64,
    "o_lora_rank": 64,
    "hidden_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "num_nextn_predict_layers": 0,
    "mtp_num_hidden_layers": 0,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class Case:
    """A shipped config, the first ``layers`` of it, and what else must shrink with the width.

    Where no config of a family is shipped, ``changes`` is the whole config.
    """

    name: str
    layers: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    shipped: bool = True


NARROW = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
PLAIN = {
    **NARROW,
    "head_dim": 128,
    "vocab_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "num_key_value_heads": 2,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}


def own(model_type: str, architecture: str, **changes: Any) -> Case:
    """A family without a shipped config."""
    names = {"model_type": model_type, "architectures": [architecture]}
    layers = changes.get("num_hidden_layers", 2)
    whole = {**PLAIN, **names, **changes}
    return Case(
        model_type, layers, {k: v for k, v in whole.items() if v is not None}, shipped=False
    )


CASES = [
    Case("qwen3.5-0.8b", 4),
    Case("qwen3.5-35b-a3b", 4),
    Case("qwen3-next-80b-a3b-instruct", 4),
    Case(
        "kimi-linear-48b-a3b-instruct",
        4,
        {
            "linear_attn_config": {
                "kda_layers": [1, 2, 3],
                "full_attn_layers": [4],
                "num_heads": 4,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
    ),
    Case(
        "glm-5.3-flash",
        4,
        {
            "linear_attn_config": {
                "kda_layers": [0, 1, 2],
                "full_attn_layers": [3],
                "num_heads": 4,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
                "gate_lower_bound": -5.0,
            },
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
    ),
    Case("nemotron-3-nano-30b-a3b-bf16", 4, {"hybrid_override_pattern": "ME*E"}),
    Case("nemotron-nano-9b-v2", 4, {"hybrid_override_pattern": "M-*-"}),
    Case("jamba-1.5-mini", 5, NARROW),
    Case(
        "bamba-9b",
        2,
        {**NARROW, "mamba_n_heads": 8, "attn_layer_indices": [1]},
    ),
    Case(
        "granite-4.0-h-tiny",
        6,
        {**NARROW, "mamba_n_heads": 8},
    ),
    Case("falcon-h1-0.5b-base", 2),
    Case(
        "zamba2-2.7b",
        4,
        {
            "hidden_size": 320,
            "attention_hidden_size": 640,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_mamba_heads": 10,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "hybrid_layer_ids": [1, 3],
        },
    ),
    Case("mamba-codestral-7b", 2, {"hidden_size": 256, "num_heads": 8, "intermediate_size": 512}),
    Case(
        "falcon-mamba-7b", 2, {"hidden_size": 256, "intermediate_size": 512, "time_step_rank": 16}
    ),
    Case("recurrentgemma-2b", 3, {"attention_window_size": 32}),
    Case(
        "lfm2-350m",
        3,
        {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "conv_dim": 256,
            "block_ff_dim": 256,
        },
    ),
    Case(
        "lfm2-8b-a1b",
        3,
        {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "conv_dim": 256},
    ),
    Case("lfm3-1.7b", 5, {"sliding_window": 32}),
    Case(
        "olmo-hybrid-7b",
        4,
        {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2},
    ),
    Case(
        "ling-2.6-flash",
        2,
        {"num_attention_heads": 4, "num_key_value_heads": 4, "layer_group_size": 2},
    ),
    Case(
        "ling-3.0-flash",
        2,
        {"num_attention_heads": 4, "num_key_value_heads": 4, "layer_group_size": 2},
    ),
    Case("llama-3.1-8b", 2, NARROW),
    Case("qwen3-8b", 2),
    Case("qwen3-30b-a3b", 2),
    Case("mistral-small-3.2-24b-instruct", 2),
    Case("mixtral-8x7b-v0.1", 2, NARROW),
    Case("gemma-3-27b-it", 6, {"sliding_window": 32}),
    Case("gemma-4-26b-a4b", 6, {"sliding_window": 32}),
    Case("gpt-oss-20b", 2, {"sliding_window": 32}),
    Case("glm-4.5-air", 2),
    Case("minimax-m2.7", 2),
    Case("mimo-v2-flash", 2, {"sliding_window": 32, "sliding_window_size": 32}),
    Case("step-3.7-flash", 2, {"sliding_window": 32}),
    Case("deepseek-v3", 2),
    Case("deepseek-v3.2", 2),
    Case("glm-5", 2),
    Case("hy4-preview", 4),
    Case("deepseek-v4-flash", 4, {"sliding_window": 32}),
    Case("qwen3.8-flash-next", 4, {"partial_rotary_factor": 0.25}),
    own("minimax", "MiniMaxForCausalLM", attn_type_list=[1, 0], num_local_experts=4, **EXPERTS),
    own(
        "mamba",
        "MambaForCausalLM",
        intermediate_size=512,
        state_size=16,
        conv_kernel=4,
        time_step_rank=16,
        expand=2,
    ),
    own("mistral", "MistralForCausalLM", sliding_window=32),
    own(
        "ministral",
        "MinistralForCausalLM",
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
    ),
    own("qwen2", "Qwen2ForCausalLM"),
    own(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        num_experts=4,
        shared_expert_intermediate_size=32,
        **EXPERTS,
    ),
    own(
        "gemma2",
        "Gemma2ForCausalLM",
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
    ),
    own(
        "gemma3n_text",
        "Gemma3nForCausalLM",
        num_hidden_layers=6,
        intermediate_size=[64] * 6,
        sliding_window=32,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 3,
        activation_sparsity_pattern=[0.0] * 6,
        laurel_rank=8,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=128,
        altup_num_inputs=2,
    ),
    own(
        "llama4_text",
        "Llama4ForCausalLM",
        num_hidden_layers=4,
        num_local_experts=4,
        intermediate_size_mlp=64,
        interleave_moe_layer_step=2,
        attention_chunk_size=32,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
        **EXPERTS,
    ),
    own(
        "falcon",
        "FalconForCausalLM",
        head_dim=None,
        new_decoder_architecture=True,
        num_kv_heads=1,
        multi_query=False,
        alibi=False,
        parallel_attn=True,
        bias=False,
    ),
    own("deepseek_v2", "DeepseekV2ForCausalLM", **LATENT, **EXPERTS),
    own("glm4_moe_lite", "Glm4MoeLiteForCausalLM", head_dim=None, **LATENT, **EXPERTS),
]


def _bailing_as_kda(case: Case, layer: LayerCaches, tokens: int) -> int:
    heads, width, columns = 4, 128, 4
    return layer.state_bytes + 3 * heads * width * columns * 2 if layer.states else 0


def _mimo_window(case: Case, layer: LayerCaches, tokens: int) -> int:
    return sum(c.bytes_per_entry for c in layer.tokens if c.window and tokens >= c.window.tokens)


def _falcon_heads(case: Case, layer: LayerCaches, tokens: int) -> int:
    heads, kv_heads = case.changes["num_attention_heads"], case.changes["num_kv_heads"]
    return layer.token_bytes(tokens) * (heads // kv_heads - 1)


# What transformers keeps beyond the account, in bytes, and why the account leaves it out.
DIFFERENCES: dict[str, tuple[Callable[[Case, LayerCaches, int], int], str]] = {
    "ling-2.6-flash": (
        _bailing_as_kda,
        "transformers reads every bailing_hybrid as KDA (Ling 3.0) and so keeps an fp32 state and "
        "a convolution window of 3 x heads x head_dim x 4 columns; Ling 2.5 and 2.6 are lightning "
        "attention, which has no convolution",
    ),
    "mimo-v2-flash": (
        _mimo_window,
        "its config class adds the query to sliding_window_size, so a windowed layer keeps W "
        "tokens where every other family keeps W - 1",
    ),
    "falcon": (
        _falcon_heads,
        "the new decoder architecture copies K and V out to all attention heads before it caches "
        "them; other engines store the KV heads",
    ),
}


def shrunk(case: Case) -> dict[str, Any]:
    """The published config with everything that no cache depends on made small."""
    if not case.shipped:
        return copy.deepcopy(dict(case.changes))
    raw: dict[str, Any] = json.loads((CONFIGS / f"{case.name}.json").read_text())
    text = raw.get("text_config", raw)
    for key in ("quantization_config", "compression_config"):
        raw.pop(key, None)
        text.pop(key, None)
    before = text.get("num_hidden_layers")
    for key, value in list(text.items()):
        if key in SMALL and value is not None:
            text[key] = SMALL[key]
        if isinstance(value, list) and len(value) in (before, (before or 0) + 1):
            text[key] = value[: case.layers]
    text["num_hidden_layers"] = case.layers
    text["pad_token_id"] = 0
    text.update(copy.deepcopy(dict(case.changes)))
    return raw


def build(raw: dict[str, Any]) -> Any:
    """A model of the text part, bf16, random weights; checked to be small before it is made."""
    kind = transformers.CONFIG_MAPPING[raw["model_type"]]
    if "text_config" in kind.sub_configs and "text_config" not in raw:
        raw = {"model_type": raw["model_type"], "text_config": raw}
    text = kind.from_dict(copy.deepcopy(raw)).get_text_config(decoder=True)
    model_class = _model_class(text)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(text).parameters())
    assert size < MOST_PARAMETERS, f"{size:,} parameters: something did not shrink"
    torch.manual_seed(0)
    return model_class._from_config(text, dtype=torch.bfloat16).eval()


def _model_class(text: Any) -> Any:
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        if type(text) in auto._model_mapping:
            return auto._model_mapping[type(text)]
    # Step-3.7's text model is in no auto class.
    home = type(text).__module__.replace(".configuration_", ".modeling_")
    return getattr(importlib.import_module(home), type(text).__name__.replace("Config", "Model"))


def real_bytes(model: Any, tokens: int) -> list[dict[str, int]]:
    """Bytes of every tensor in each layer of the cache after a prefill, by attribute."""
    cache = _empty_cache(model)
    core = getattr(model, "model", model)
    states = model.config.model_type == "recurrent_gemma"
    if states:
        core._setup_cache(model.config, 1, "cpu", torch.bfloat16)
    with torch.no_grad():
        model(input_ids=torch.zeros((1, tokens), dtype=torch.long), cache=cache, use_cache=True)
    linear = getattr(cache, "linear_cache", [])
    found = [dict(_tensors(layer)) for layer in cache.layers]
    found += [{} for _ in range(len(linear) - len(found))]
    for held, state in zip(found, linear, strict=False):
        held.update(_tensor("linear_cache", state))
    if states:
        for held, layer in zip(found, core.layers, strict=True):
            held.update(_states_of_modules(layer.temporal_block))
    return found


def _empty_cache(model: Any) -> Any:
    if model.config.model_type == "minimax":
        return importlib.import_module(type(model).__module__).MiniMaxCache()
    return transformers.DynamicCache(config=model.config)


def _tensor(name: str, value: Any) -> dict[str, int]:
    return {name: value.numel() * value.element_size()} if isinstance(value, torch.Tensor) else {}


def _states_of_modules(block: Any) -> Iterator[tuple[str, int]]:
    """RecurrentGemma keeps its states on the modules, not in the cache."""
    for module in block.modules():
        for name in ("conv1d_state", "recurrent_states"):
            value = vars(module).get(name)
            if value is not None:
                yield name, value.numel() * value.element_size()


def _tensors(layer: Any) -> Iterator[tuple[str, int]]:
    seen: set[int] = set()
    for name, value in vars(layer).items():
        if name.startswith("_"):
            continue
        total = 0
        for part in value.values() if isinstance(value, dict) else [value]:
            if isinstance(part, torch.Tensor) and id(part) not in seen:
                seen.add(id(part))
                total += part.numel() * part.element_size()
        if total:
            yield name, total


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bytes_of_a_real_cache(case: Case) -> None:
    raw = shrunk(case)
    spec = read_config(raw, file=f"{case.name}.json", name=case.name)
    layers = model_caches(spec, Deployment(engine="transformers"))
    model = build(raw)
    beyond = DIFFERENCES.get(case.name)
    for tokens in LENGTHS:
        found = real_bytes(model, tokens)
        assert len(found) == len(layers)
        for real, layer in zip(found, layers, strict=True):
            account = layer.token_bytes(tokens) + layer.state_bytes
            explained = beyond[0](case, layer, tokens) if beyond else 0
            assert sum(real.values()) == account + explained, (tokens, layer.index, real)


def table() -> str:
    """docs/engines/transformers.md: what was compared, and every difference with its reason."""
    lines = ["| config | model_type | result |", "|---|---|---|"]
    for case in CASES:
        difference = DIFFERENCES.get(case.name)
        result = f"more by a known amount: {difference[1]}" if difference else "equal"
        lines.append(f"| {case.name} | {shrunk(case)['model_type']} | {result} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The page with its table as the comparison has it."""
    begin, end = "<!-- compared: begin -->\n", "\n<!-- compared: end -->"
    before, _, rest = text.partition(begin)
    return before + begin + table() + end + rest.partition(end)[2]


# Names whose text model is that of a compared one, by the same reader.
SAME_TEXT_MODEL = {"kimi_k25": "deepseek_v3", "lfm2_vl": "lfm2", "gemma4_unified": "gemma4"}


def test_every_family_of_transformers_is_compared() -> None:
    compared = {shrunk(case)["model_type"].removesuffix("_text") for case in CASES}
    assert set(SAME_TEXT_MODEL.values()) <= compared
    known = {name for name in FAMILIES if name in transformers.CONFIG_MAPPING}
    assert {name.removesuffix("_text") for name in known} - compared == set(SAME_TEXT_MODEL)


def test_page_says_what_is_tested() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run: python tests/ledger/test_transformers_cache.py"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
