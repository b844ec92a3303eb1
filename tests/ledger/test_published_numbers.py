"""Numbers that others published, or that engines logged, come out of the shipped configs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridplan import Deployment, ledger, load
from hybridplan.config.spec import Mamba2
from hybridplan.ledger.caches import model_caches
from hybridplan.ledger.speculation import RING_ROWS, ring_record_bytes
from hybridplan.ledger.transfer import offload

MIB = 1 << 20


@pytest.mark.parametrize(
    "engine, state_bytes, conv_bytes, crossover_tokens",
    [
        pytest.param("transformers", 18 * MIB, 864 << 10, 536, id="transformers-K-columns"),
        pytest.param("vllm", 18 * MIB, 648 << 10, 530, id="vllm-K-1-columns"),
        pytest.param("sglang", 18 * MIB, 648 << 10, 530, id="sglang-K-1-columns"),
    ],
)
def test_qwen35_small(
    engine: str, state_bytes: int, conv_bytes: int, crossover_tokens: int
) -> None:
    account = ledger(load("qwen3.5-0.8b"), Deployment(engine=engine))  # type: ignore[arg-type]
    assert account.model.pattern == "LLLF x 6"
    assert account.model.layers == 24
    assert account.per_token.bytes == 12_288
    assert account.per_token.twin_bytes == 49_152
    assert account.per_request.state_bytes == state_bytes
    assert account.per_request.conv_bytes == conv_bytes
    assert account.per_request.bytes == state_bytes + conv_bytes
    assert account.crossover.tokens == crossover_tokens


# name, KV bytes a token, state and conv bytes a request, state dtype asked for
FLEET = [
    ("qwen3.5-0.8b", 12_288, 19_537_920, None),
    ("qwen3.5-4b", 32_768, 51_511_296, None),
    ("qwen3.5-9b", 32_768, 51_511_296, None),
    ("qwen3.5-27b", 65_536, 153_944_064, None),
    ("qwen3.6-27b-nvfp4", 65_536, 153_944_064, None),
    ("qwen3.8-27b", 65_536, 153_944_064, None),
    ("qwen3.5-35b-a3b", 20_480, 64_389_120, None),
    ("qwen3-next-80b-a3b-instruct", 24_576, 77_266_944, "float32"),
    ("qwen3.5-397b-a17b", 30_720, 192_061_440, None),
    ("nemotron-nano-9b-v2", 16_384, 72_769_536, "bfloat16"),
    ("nemotron-3-nano-30b-a3b-bf16", 6_144, 49_082_368, None),
    ("kimi-linear-48b-a3b-instruct", 8_064, 43_417_600, None),
]


@pytest.mark.parametrize(
    "name, kv_bytes, state_bytes, state_dtype", FLEET, ids=[row[0] for row in FLEET]
)
def test_kv_and_state_under_vllm(
    name: str, kv_bytes: int, state_bytes: int, state_dtype: str | None
) -> None:
    choices = Deployment(kv_dtype="bfloat16", state_dtype=state_dtype)
    account = ledger(load(name), choices)
    assert account.per_token.bytes == kv_bytes
    assert account.per_request.bytes == state_bytes


@pytest.mark.parametrize(
    "tp, layer_bytes",
    [pytest.param(1, 4_341_760, id="tp1"), pytest.param(8, 542_720, id="tp8")],
)
def test_glm_flash(tp: int, layer_bytes: int) -> None:
    account = ledger(load("glm-5.3-flash"), Deployment(tp=tp))
    kda = [layer for layer in account.layers if layer.sign == "L"]
    sparse = [layer for layer in account.layers if layer.sign == "F"]
    assert {sum(state.bytes for state in layer.states) for layer in kda} == {layer_bytes}
    assert (len(kda), len(sparse)) == (34, 11)
    for layer in sparse:
        latent, index = layer.tokens
        assert (latent.name, latent.bytes_per_entry, latent.tokens_per_entry) == ("mla", 1024, 1)
        assert (index.name, index.bytes_per_entry, index.tokens_per_entry) == ("index", 132, 4)


def test_deepseek_v3_latent() -> None:
    account = ledger(load("deepseek-v3"), Deployment(kv_dtype="bfloat16"))
    (line,) = account.token_caches
    assert (line.layers, line.bytes_per_entry) == (61, 1152)
    assert account.per_token.bytes == 61 * 1152
    assert account.crossover.tokens is None
    assert "own twin" in account.crossover.reason


ILLUSTRATIVE_ROWS = [
    (512, 48, 84),
    (1024, 96, 96),
    (4096, 384, 168),
    (32768, 3072, 840),
    (262144, 24576, 6216),
]


@pytest.mark.parametrize(
    "tokens, dense_mib, hybrid_mib",
    ILLUSTRATIVE_ROWS,
    ids=[str(r[0]) for r in ILLUSTRATIVE_ROWS],
)
def test_illustrative_contexts(tokens: int, dense_mib: int, hybrid_mib: int) -> None:
    account = ledger(load("illustrative-48"), contexts=[tokens])
    (line,) = account.contexts
    assert (line.twin_bytes, line.hybrid_bytes) == (dense_mib * MIB, hybrid_mib * MIB)


def test_illustrative_checkpoints() -> None:
    account = ledger(load("illustrative-48"))
    assert account.model.attention_layers == 12
    assert account.crossover.tokens == 1024
    assert account.checkpoints.checkpoint_bytes == 72 * MIB
    ratios = [f"{cost.ratio:.1f}" for cost in account.checkpoints.costs]
    assert ratios == ["12.0", "3.0", "0.8"]


@pytest.mark.parametrize(
    "name, mib",
    [
        pytest.param("qwen3.5-27b", 149.625, id="27b-logged-as-RS-buffer"),
        pytest.param("qwen3.5-35b-a3b", 62.8125, id="35b-a3b-checkpoint-intercept"),
    ],
)
def test_llama_cpp_state(name: str, mib: float) -> None:
    account = ledger(load(name), Deployment(engine="llama.cpp"))
    assert account.per_request.bytes == mib * MIB


def test_llama_cpp_quantised_mtp_layer() -> None:
    """The MTP layer of 27B at q8_0: 2,176 B a token (case E09)."""
    account = ledger(load("qwen3.5-27b"), Deployment(engine="llama.cpp", kv_dtype="q8_0"))
    assert account.speculation.draft_kv_bytes_per_token == 2176


MLX_SNAPSHOTS = [
    (1_610, 195_887_104),
    (6_410, 514_654_208),
    (14_410, 1_034_747_904),
    (25_610, 1_772_945_408),
]


@pytest.mark.parametrize(
    "tokens, snapshot_bytes", MLX_SNAPSHOTS, ids=[str(row[0]) for row in MLX_SNAPSHOTS]
)
def test_mlx_snapshot(tokens: int, snapshot_bytes: int) -> None:
    """Saved prompt snapshots of Qwen3.8-27B (case G02)."""
    account = ledger(load("qwen3.8-27b"), Deployment(engine="mlx"), contexts=[tokens])
    assert account.contexts[0].hybrid_bytes == snapshot_bytes


def test_sglang_slot() -> None:
    """Slot of Qwen3-Next-80B in SGLang 0.5.23's own worked example; fp32 state by default there."""
    account = ledger(load("qwen3-next-80b-a3b-instruct"), Deployment(engine="sglang"))
    assert account.checkpoints.checkpoint_bytes == 77_266_944
    assert account.per_token.bytes == 24_576


def test_sglang_tokens_per_slot() -> None:
    """27B at tp 2 with fp8 KV and a bf16 state: one slot is worth 2,253.2 tokens (case H20)."""
    choices = Deployment(engine="sglang", tp=2, kv_dtype="fp8", state_dtype="bfloat16")
    account = ledger(load("qwen3.8-27b"), choices)
    per_token = account.per_token.bytes + account.speculation.draft_kv_bytes_per_token
    assert per_token == 17_408
    assert account.checkpoints.checkpoint_bytes == 39_223_296
    assert round(account.checkpoints.checkpoint_bytes / per_token, 1) == 2253.2


@pytest.mark.parametrize(
    "kv_dtype, tp, layer_bytes",
    [
        pytest.param("int8_per_token_head", 2, 1_040, id="int8-scales-27b-tp2-H03"),
        pytest.param("fp8_per_token_head", 1, 2_080, id="fp8-scales-27b-tp1-A07"),
        pytest.param("fp8", 2, 1_024, id="fp8-plain-27b-tp2"),
    ],
)
def test_scaled_kv_formats(kv_dtype: str, tp: int, layer_bytes: int) -> None:
    account = ledger(load("qwen3.8-27b"), Deployment(tp=tp, kv_dtype=kv_dtype))
    assert [line.bytes_per_entry for line in account.token_caches] == [layer_bytes]


def test_qwen3_next_transfer_and_offload() -> None:
    """Break-even length and state shares of the specification on moving state (sections 5, 6)."""
    spec = load("qwen3-next-80b-a3b-instruct")
    account = ledger(spec, Deployment(state_dtype="float32"), checkpoint_every=[528, 2048, 8192])
    assert account.transfer.break_even_tokens == 3_144
    share = {cost.every_tokens: cost.state_share for cost in account.checkpoints.costs}
    assert {tokens: f"{share[tokens]:.1%}" for tokens in (528, 2048, 8192)} == {
        528: "85.6%",
        2048: "60.6%",
        8192: "27.7%",
    }


def test_offload_store_of_one_prompt() -> None:
    """212 blocks of 784 tokens and ten states of 27B, as one log counted them (case A16)."""
    layers = model_caches(load("qwen3.8-27b"), Deployment())
    assert offload(layers, 212 * 784, 10).host_bytes == 12_432_048_128
    assert offload(layers, 200 * 784, 1).host_bytes == 10_429_988_864


def test_sglang_snapshots_are_charged_whole() -> None:
    """D = 4 states a request: 294.8 MiB on top of 73.7 (state_recovery section 3)."""
    spec = load("qwen3-next-80b-a3b-instruct")
    account = ledger(spec, Deployment(engine="sglang", drafts=3))
    snapshots = account.speculation.schemes[0]
    charged = 4 * account.per_request.bytes
    assert f"{charged:,} bytes" in snapshots.rule
    assert round(charged / MIB, 1) == 294.8
    assert snapshots.extra_bytes < charged


def test_replay_ring_of_mamba2() -> None:
    """128 heads x 64 x 128 in 8 groups: a record of 18,944 B, 16 of them 7.2 % of an fp32 state."""
    mixer = Mamba2(heads=128, head_dim=64, state_dim=128, groups=8, conv_kernel=4)
    record = ring_record_bytes(mixer, load("qwen3.5-0.8b"), Deployment())
    assert record == 18_944
    assert f"{RING_ROWS * record / (128 * 64 * 128 * 4):.1%}" == "7.2%"


def test_verify_ring_of_gated_delta_net() -> None:
    """Qwen3-Next: 13.57 MiB a request with low parts beside bf16 records (state_recovery 1)."""
    spec = load("qwen3-next-80b-a3b-instruct")
    account = ledger(spec, Deployment(engine="sglang", drafts=3))
    ring = next(s for s in account.speculation.schemes if s.name.startswith("ReplaySSM"))
    assert round(ring.extra_bytes / MIB, 2) == 13.57


def test_recover_records_of_kda() -> None:
    """RecoverSSM: D / 64 of an fp32 state at V = K = 128 in bf16, so 12.5 % at D = 8."""
    account = ledger(load("kimi-linear-48b-a3b-instruct"), Deployment(drafts=7))
    recover = next(s for s in account.speculation.schemes if s.name.startswith("RecoverSSM"))
    assert recover.extra_bytes * 8 == account.per_request.state_bytes


def test_qwen35_122b_from_its_larger_sibling() -> None:
    """No config of 122B-A10B is shipped; it has the layers of 397B-A17B, 12 + 36 of them."""
    large = load("qwen3.5-397b-a17b")
    account = ledger(replace(large, layers=large.layers[:48]))
    assert account.per_token.bytes == 24_576
    assert account.per_request.bytes == 153_649_152
