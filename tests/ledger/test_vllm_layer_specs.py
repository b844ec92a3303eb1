"""Per-layer bytes against the KV cache specs that vLLM 0.32 and 0.33 built for the same configs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hybridplan import Deployment, load
from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.caches import LayerCaches, draft_caches, model_caches

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm"
# vLLM chose these from the GPU and the attention backend, which a ledger does not know.
CHOSEN_BY_BACKEND = {
    ("0.33.0", "glm53flash_tp8_sm100_auto"): "fp8",
    ("0.32.0", "deepseek_v32_like_tp8_fp8"): "fp8_ds_mla",
    ("0.33.0", "deepseek_v32_like_tp8_fp8"): "fp8_ds_mla",
}


def _cases() -> list[Any]:
    cases = []
    for path in sorted(GOLDEN.glob("*/groups/*.json")):
        golden = json.loads(path.read_text())
        if golden["case"].get("hf_config") and golden["result"].get("layer_specs"):
            version = path.parent.parent.name
            cases.append(pytest.param(golden, id=f"{version}-{golden['name']}"))
    return cases


def _spec(golden: dict[str, Any]) -> ModelSpec:
    hf_config = golden["case"]["hf_config"]
    if hf_config["model_type"].startswith("glm5_next"):
        # These cases leave the layer list to the class; the published config states it.
        return load("glm-5.3-flash")
    return read_config(hf_config, file="golden", name=golden["name"])


def _deployment(golden: dict[str, Any]) -> Deployment:
    flags = golden["case"]["engine_args"]
    case = golden["result"]["vllm_version"], golden["name"]
    kv_dtype = CHOSEN_BY_BACKEND.get(case, flags.get("kv_cache_dtype"))
    # --mamba-cache-dtype is the convolution's dtype, and of a lightning state's.
    conv = flags.get("mamba_cache_dtype")
    return Deployment(
        tp=flags.get("tensor_parallel_size", 1),
        kv_dtype=kv_dtype,
        state_dtype=flags.get("mamba_ssm_cache_dtype"),
        conv_dtype=conv,
        drafts=(flags.get("speculative_config") or {}).get("num_speculative_tokens", 0),
    )


def _of_engine(golden: dict[str, Any]) -> Counter[tuple[str, int, int]]:
    """(kind, bytes of an entry or state, tokens per entry) of every layer."""
    found: Counter[tuple[str, int, int]] = Counter()
    for group in golden["result"]["layer_specs"]:
        spec, count = group["spec"], len(group["layers"])
        if spec["type"] == "MambaSpec":
            found["state", spec["real_page_size_bytes"], 1] += count
        elif spec["type"] == "CircularBufferSpec":
            found["ring", spec["real_page_size_bytes"], 1] += count
        else:
            pooled = int(spec.get("tokens_per_state", 1))
            entries = spec["block_size"] // pooled
            found["tokens", spec["real_page_size_bytes"] // entries, pooled] += count
    return found


def _of_ledger(layers: tuple[LayerCaches, ...]) -> Counter[tuple[str, int, int]]:
    found: Counter[tuple[str, int, int]] = Counter()
    for layer in layers:
        for cache in layer.tokens:
            found["tokens", cache.bytes_per_entry, cache.tokens_per_entry] += 1
        by_mixer: Counter[str] = Counter()
        for state in layer.states:
            by_mixer[state.mixer] += state.bytes if state.checkpointed else 0
        for checkpointed in by_mixer.values():
            if checkpointed:
                found["state", checkpointed, 1] += 1
        for state in layer.states:
            if not state.checkpointed:
                found["ring", state.bytes, 1] += 1
    return found


@pytest.mark.parametrize("golden", _cases())
def test_layer_specs(golden: dict[str, Any]) -> None:
    spec = _spec(golden)
    deployment = _deployment(golden)
    layers = model_caches(spec, deployment)
    if deployment.drafts:
        layers += draft_caches(spec, deployment)
    assert _of_ledger(layers) == _of_engine(golden)
