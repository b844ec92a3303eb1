"""Bytes of caches, states, checkpoints, offload and pools that are not vLLM's block pool."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from case_boot import Where, Within
from case_settings import Case, model_of, settings_of

from hybridplan.config.read import read_config
from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.caches import draft_caches, model_caches
from hybridplan.ledger.checkpoints import checkpoint_bytes
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.held import token_rate
from hybridplan.ledger.logs.capacity import Capacity, solve
from hybridplan.ledger.planning.weights import rank_weights
from hybridplan.ledger.sglang.plan import kv_bytes_per_token, slot_bytes
from hybridplan.ledger.sglang.split import SplitInput, split
from hybridplan.ledger.sglang.strategy import resolve_strategy, slots_per_request
from hybridplan.ledger.transfer import offload
from hybridplan.ledger.vllm.alignment import align
from hybridplan.ledger.vllm.ascend import ascend_alignment
from hybridplan.ledger.vllm.backends import BACKENDS
from hybridplan.ledger.vllm.groups import group_layers
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import AttentionCache
from hybridplan.ledger.vllm.plan import plan_vllm
from hybridplan.ledger.vllm.rules import rules_of
from hybridplan.ledger.weights import weights as weights_of
from hybridplan.sim.vllm.positions import checkpoint_position

MIB, GIB = 1 << 20, 1 << 30
Found = dict[Where, Any]


def half_digit(printed: float) -> float:
    """Half of the last digit of a printed figure."""
    text = repr(printed)
    return 0.5 * 10 ** -(len(text.split(".")[1]) if "." in text else 0)


def _around(value: float, error: float) -> tuple[float, float]:
    return value - error, value + error


def llama_pool(case: Case) -> Found:
    """KV and recurrent cells of llama.cpp: fp16 KV, fp32 state and window."""
    observed = case["observed"]
    layers = model_caches(model_of(case["model"]), Deployment("llama.cpp"))
    states = [state for layer in layers for state in layer.states]
    one_mib = checkpoint_bytes(layers) / MIB
    found: Found = {}
    if "kv_mib" in observed:
        kv = sum(layer.token_bytes(observed["kv_cells"]) for layer in layers)
        found["kv_mib",] = kv / MIB
        found["kv_layers",] = sum(1 for layer in layers if layer.tokens)
    if "rs_mib" in observed:
        found["rs_mib",] = observed["seqs"] * one_mib
    if "rs_total_mib" in observed:
        cells = observed["cells"]
        found["rs_total_mib",] = cells * one_mib
        for key, name in (("R_mib", "conv"), ("S_mib", "state")):
            found[key,] = cells * sum(s.bytes for s in states if s.name == name) / MIB
    return found


def checkpoint_line(case: Case) -> Found:
    """llama.cpp's prompt checkpoints grow by the MTP layer's KV; at no tokens the states remain."""
    observed = case["observed"]
    spec = model_of(case["model"])
    state_mib = checkpoint_bytes(model_caches(spec, Deployment("llama.cpp"))) / MIB
    (low, high), (first, last) = observed["checkpoint_mib"], observed["n_tokens"]
    slope = (high - low) / (last - first)
    # Both points are printed rounded, which the line between them carries to its start.
    halves = [half_digit(low), half_digit(high)]
    error = halves[0] + sum(halves) * first / (last - first)
    return {("checkpoint_mib", 0): Within(*_around(state_mib + slope * first, error))}


def snapshots(case: Case) -> Found:
    """MLX: KV in steps of 256 tokens, state in the model's dtype."""
    layers = model_caches(model_of(case["model"]), Deployment("mlx"))
    states = checkpoint_bytes(layers)
    held = [states + sum(x.token_bytes(n) for x in layers) for n in case["observed"]["n_tokens"]]
    return {("snapshot_bytes",): held}


def host_checkpoints(case: Case) -> Found:
    """OpenVINO GenAI: one state every so many tokens of a prompt."""
    observed = case["observed"]
    spec = model_of(case["model"])
    layers = model_caches(spec, Deployment("vllm", state_dtype="float32"))
    count = -(-observed["prompt_tokens"] // observed["interval_tokens"])
    one = offload(layers, 0, 1)
    return {
        ("state_mib_about",): int(one.host_bytes / 1e6),  # whole MB, under this name
        ("checkpoints",): count,
    }


def mamba_sequences(case: Case) -> Found:
    """A Mamba-1 model of 2.8B in llama.cpp, one state per sequence."""
    observed = case["observed"]
    config = {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 5120,
        "num_hidden_layers": 64,
        "state_size": 16,
        "conv_kernel": 4,
        "time_step_rank": 160,
        "vocab_size": 50280,
        "torch_dtype": "float16",
    }
    spec = read_config(config, file="mamba-2.8b", name="mamba-2.8b")
    held = offload(model_caches(spec, Deployment("llama.cpp")), 0, observed["n_ctx"])
    return {
        ("state_mib_per_seq",): held.host_bytes / observed["n_ctx"] / MIB,
        ("total_gib",): held.host_bytes / GIB,
    }


def slots_of_a_given_size(case: Case) -> Found:
    """A state known by its size alone, for every slot of the largest batch."""
    observed = case["observed"]
    spec = _of_state_bytes(round(observed["state_mib_per_slot"] * MIB))
    held = offload(model_caches(spec, Deployment("vllm")), 0, observed["max_batch_size"])
    half = 0.05 / observed["state_mib_per_slot"]
    gib = held.host_bytes / GIB
    return {("demand_gib",): Within(gib * (1 - half) - 0.05, gib * (1 + half) + 0.05)}


def _of_state_bytes(size: int) -> ModelSpec:
    config = {
        "model_type": "hybridplan",
        "hidden_size": 1024,
        "vocab_size": 1000,
        "dtype": "float32",
        "max_position_embeddings": 4096,
        "mixers": {"state": {"kind": "state", "state_elements": size // 4}},
        "layers": [{"mixers": ["state"]}],
    }
    return read_config(config, file="state", name="state")


def offloaded(case: Case) -> Found:
    """Attention blocks x layers x page, and states without their padding."""
    settings = settings_of(case)
    layers = model_caches(settings.model, Deployment("vllm", kv_dtype=settings.kv_dtype))
    plan = plan_vllm(
        settings.model, Deployment("vllm", "0.32"), VllmOptions(prefix_caching=True), 1 << 40
    )
    block = plan.block_tokens
    hit, hit_states = _counts(case, "load")
    stored, stored_states = _counts(case, "store")
    return {
        ("block_size",): block,
        ("external_hit_tokens",): hit * block,
        ("load_bytes",): offload(layers, hit * block, hit_states).host_bytes,
        ("store_bytes",): offload(layers, stored * block, stored_states).host_bytes,
    }


def _counts(case: Case, name: str) -> tuple[int, int]:
    """Blocks and states that the derivation names, as in "200 blocks + 1 state = ..."."""
    found = re.match(r"(\d+) blocks \+ (\d+) states?", case["derived"]["predicted"][name])
    assert found is not None, name
    return int(found.group(1)), int(found.group(2))


def retrieved(case: Case) -> Found:
    """Whole blocks come back from an offload tier."""
    plan = plan_vllm(
        settings_of(case).model,
        Deployment("vllm", "0.32"),
        VllmOptions(prefix_caching=True),
        1 << 40,
    )
    tokens = case["observed"]["retrieved_tokens"]
    position = checkpoint_position(
        tokens + 1, plan.block_tokens, drop_draft_block=False, hash_lookahead_tokens=0
    )
    return {("block_size",): plan.block_tokens, ("retrieved_tokens",): position}


def hidden_state_pages(case: Case) -> Found:
    """A cache of hidden states beside the KV, padded to the page of a hybrid's block."""
    settings, observed = settings_of(case), case["observed"]
    deployment = Deployment("vllm", "older", drafts=settings.drafts or 0)
    plan = plan_vllm(settings.model, deployment, VllmOptions(prefix_caching=True), 1 << 40)
    page = max(cache.page_bytes for cache in plan.layers.values())
    hidden = AttentionCache(
        kind="mla",
        block_tokens=observed["hidden_state_block"],
        heads=1,
        key_dim=settings.model.hidden_size,
        dtype="bfloat16",
        padded_page_bytes=page,
    )
    waste = hidden.page_bytes - hidden.content_bytes
    return {
        ("block_size",): plan.block_tokens,
        ("waste_bytes",): waste,
        ("waste_pct",): 100 * waste / page,
    }


def ascend_blocks(case: Case) -> Found:
    """vllm-ascend: the state over the keys of a token, later over keys and values."""
    observed = case["observed"]
    spec = model_of(case["model"])
    keys = ascend_alignment(spec, Deployment("vllm"), keys_only=True)
    both = ascend_alignment(spec, Deployment("vllm"), keys_only=False)
    found: Found = {
        ("block_size_before",): keys.block_tokens,
        ("block_size_after",): both.block_tokens,
        ("block_size_required",): keys.block_tokens,
        ("ssm_bytes",): keys.state_bytes,
        ("k_bytes_per_token",): keys.token_bytes,
    }
    return {where: value for where, value in found.items() if where[0] in observed}


def whole_chunks(case: Case) -> Found:
    """Mode "all" of early releases: blocks are whole kernel chunks."""
    observed = case["observed"]
    kib = 1024
    found = align(
        [BACKENDS["FLASH_ATTN"]],
        token_bytes=observed["attn_token_kb"] * kib,
        state_bytes=observed["mamba_page_kb"] * kib,
        mla=False,
        mode="all",
        rules=rules_of("older"),
        chunk_tokens=observed["chunk"],
        max_model_len=1 << 15,
    )
    return {
        ("block_size",): found.block_tokens,
        ("tokens_that_fit",): -(-found.state_bytes // found.token_bytes),
    }


def state_geometry(case: Case) -> Found:
    """Bytes of one layer's state, and how many layers keep one."""
    observed, settings = case["observed"], settings_of(case)
    layers = model_caches(
        settings.model, Deployment("vllm", tp=settings.tp or 1, state_dtype=settings.state_dtype)
    )
    keeping = [layer for layer in layers if layer.states]
    state = next(s for s in keeping[0].states if s.name == "state")
    found: Found = {
        ("state_bytes_per_layer",): keeping[0].state_bytes,
        ("mamba_layers",): len(keeping),
        ("layers",): len(keeping),
        ("state_kib",): state.bytes / 1024,
        ("total_mib",): len(keeping) * state.bytes / MIB,
    }
    return {where: value for where, value in found.items() if where[0] in observed}


def compact_pool(case: Case) -> Found:
    """A TPU pool that keeps KV pages and states apart."""
    observed = case["observed"]
    layers = model_caches(model_of(case["model"]), Deployment("vllm"))
    attending = [layer for layer in layers if layer.tokens]
    keeping = [layer for layer in layers if layer.states]
    page_tokens = observed["attn_page_bytes"] // attending[0].token_bytes(1)
    kv = observed["attn_blocks"] * sum(layer.token_bytes(page_tokens) for layer in attending)
    states = offload(layers, 0, observed["mamba_slots"]).host_bytes
    return {
        ("attn_layers",): len(attending),
        ("mamba_layers",): len(keeping),
        ("attn_page_bytes",): attending[0].token_bytes(page_tokens),
        ("state_bytes_per_layer",): keeping[0].state_bytes,
        ("attn_gib",): round(kv / GIB, 2),
        ("mamba_gib",): round(states / GIB, 2),
    }


def state_groups(case: Case) -> Found:
    """Groups of state layers under the equal-page rule."""
    settings = settings_of(case)
    deployment = Deployment("vllm", "older", tp=settings.tp or 1)
    plan = plan_vllm(settings.model, deployment, VllmOptions(), 1 << 46)
    states = [group for group in plan.groups if group.kind == "gdn"]
    return {
        ("mamba_layers",): sum(len(group.layers) for group in states),
        ("mamba_groups",): len(states),
        ("checkpoint_loss_factor",): len(states),
    }


def charged_layers(case: Case) -> Found:
    """A tool that charges MLA bytes for every layer, whatever the layer keeps."""
    spec = model_of(case["model"])
    layers = model_caches(spec, Deployment("vllm"))
    latent = next(cache for layer in layers for cache in layer.tokens)
    return {
        ("num_layers",): len(layers),
        ("bytes_per_token",): len(layers) * latent.bytes_per_entry,
    }


def unified_pages(case: Case) -> Found:
    """Pages of two sizes are made equal where the larger is a multiple of the smaller."""
    small, large = case["observed"]["page_bytes"]

    def one(size: int, kind: Any, window: int | None) -> AttentionCache:
        return AttentionCache(kind, 16, 1, 1, "uint8", entry_bytes=size // 16, window_tokens=window)

    groups = group_layers(
        {"a": one(small, "full", None), "b": one(large, "sliding", 2048)}, "LBNHC"
    )
    blocks = {name: g.block_tokens for g in groups.groups for name in g.layers}
    pages = sorted(g.page_bytes for g in groups.groups)
    assert pages == [large, large]
    return {("ratio",): blocks["a"] // blocks["b"]}


def weights(case: Case) -> Found:
    """Checkpoint bytes, and a rank's share of them.

    Within 1%: the size of a repository counts more than the tensors read here.
    """
    spec = model_of(case["model"])
    total_tb = weights_of(spec).total_bytes / 1e12
    found: Found = {("checkpoint_tb",): Within(*_around(total_tb, 0.01 * total_tb))}
    for key in case["observed"]:
        if key.startswith("gb_per_gpu_tp"):
            tp = int(key.removeprefix("gb_per_gpu_tp"))
            share_gb = rank_weights(spec, Deployment("vllm", tp=tp)).value / 1e9
            found[key,] = Within(*_around(share_gb, 0.01 * share_gb))
    return found


def prefill_checkpoint(case: Case) -> Found:
    """The last chunk boundary that leaves a token to compute."""
    observed = case["observed"]
    position = checkpoint_position(
        observed["prompt"], observed["chunk"], drop_draft_block=False, hash_lookahead_tokens=0
    )
    return {("checkpoint_at",): position}


def sglang_clamp(case: Case) -> Found:
    """Running requests that so many slots allow."""
    observed = case["observed"]
    if "slots" in observed:
        requested = max(observed["effective"].values())
        effective = {k: _clamp(case, int(k), requested) for k in observed["effective"]}
        return {("effective",): effective, ("ratio_S",): _reserved(case)}
    if "points" in observed:
        requested = max(one["max_running"] for one in observed["points"])
        clamped = [_clamp(case, one["slots"], requested) for one in observed["points"]]
        # What was asked for is an input where it, and not the slots, is what runs.
        return {
            ("points", i, "max_running"): running
            for i, running in enumerate(clamped)
            if running < requested
        }
    running = _clamp(case, observed["max_mamba_cache_size"], observed["requested"])
    return {("effective_max_running",): running, ("slots_per_request",): _reserved(case)}


def _reserved(case: Case) -> int:
    spec = model_of(case["model"])
    strategy = resolve_strategy("auto", spec.architecture, overlap=True, page_tokens=1)
    return slots_per_request(strategy, overlap=True, radix_cache=True)


def _clamp(case: Case, slots: int, requested: int) -> int:
    spec = model_of(case["model"])
    layers = model_caches(spec, Deployment("sglang", tp=case.get("tp") or 1))
    given = SplitInput(
        rest_bytes=1 << 40,
        slot_bytes=sum(slot_bytes(layers)),
        kv_bytes_per_token=kv_bytes_per_token(layers, spec.name),
        slots_per_request=_reserved(case),
        max_running_requests=requested,
        slots=slots,
    )
    return split(given).max_running_requests


def traded_slots(case: Case) -> Found:
    """Slots given up become KV tokens; the first point fixes the memory, the others follow."""
    observed, settings = case["observed"], settings_of(case)
    deployment = Deployment(
        "sglang", tp=settings.tp or 1, kv_dtype=settings.kv_dtype, state_dtype="bfloat16"
    )
    layers = model_caches(settings.model, deployment)
    slot = sum(slot_bytes(layers))
    token = int(token_rate(layers + draft_caches(settings.model, deployment)))
    first = observed["points"][0]
    rest = (first["slots"] + 1) * slot + first["kv_tokens"] * token
    least = SplitInput(rest, slot, token, slots_per_request=_reserved(case))
    most = replace(least, rest_bytes=rest + token - 1)  # less than one token may be left over
    found: Found = {("tokens_per_slot",): round(float(Fraction(slot, token)), 1)}
    for index, point in enumerate(observed["points"]):
        low, high = (split(replace(one, slots=point["slots"])).kv_tokens for one in (least, most))
        found["points", index, "kv_tokens"] = Within(low, high)
    return found


def gained_tokens(case: Case) -> Found:
    """What a change of the block gained: the two logged pools, in blocks of one token."""
    observed = case["observed"]
    blocks = []
    for key in ("kv_tokens_before", "kv_tokens_after"):
        logged = Capacity(observed[key], None, 1 << 20, None, None)
        solved = solve(logged, groups=1, block_tokens=1, per_request=1 << 20, bytes_per_block=1)
        assert solved is not None
        blocks.append(solved.num_blocks)
    return {("gain_pct",): round(100 * (blocks[1] / blocks[0] - 1), 2)}
