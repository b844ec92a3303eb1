"""The weights of one layer, matrix by matrix, under the module names checkpoints use.

Each function lists ``Part``s; the widths follow the modelling code of transformers 5.24 or, where
it has none, of the checkpoint's own repository. Checked against published parameter totals in
tests/ledger/test_weights.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridplan.config.spec import (
    RGLRU,
    RWKV7,
    Attention,
    CompressedAttention,
    DenseMLP,
    GatedDeltaNet,
    GatedMemoryUnit,
    IllustrativeState,
    Indexer,
    KimiDelta,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    Mixer,
    MoE,
    NGramConv,
    ShortConv,
)


@dataclass(frozen=True, slots=True)
class Part:
    """``params`` weights of one module of a layer; ``linear``: a matrix that quantisers touch."""

    component: str
    module: str
    params: int
    linear: bool = True
    active_params: int | None = None

    @property
    def active(self) -> int:
        """Weights of it that one token meets (fewer than all only in routed experts)."""
        return self.params if self.active_params is None else self.active_params


def mixer_parts(mixer: Mixer, hidden: int) -> Iterator[Part]:
    """Every weight of a mixer. Of an IllustrativeState or NGramConv only the cache is described."""
    match mixer:
        case Attention():
            yield from _attention(mixer, hidden)
        case LatentAttention():
            yield from _latent(mixer, hidden)
        case CompressedAttention():
            yield from _compressed(mixer, hidden)
        case GatedDeltaNet():
            yield from _gdn(mixer, hidden)
        case KimiDelta():
            yield from _kda(mixer, hidden)
        case Lightning():
            yield from _lightning(mixer, hidden)
        case Mamba1():
            yield from _mamba1(mixer, hidden)
        case Mamba2():
            yield from _mamba2(mixer, hidden)
        case RGLRU():
            yield from _rglru(mixer, hidden)
        case RWKV7():
            yield from _rwkv7(mixer, hidden)
        case ShortConv():
            yield from _short_conv(mixer, hidden)
        case GatedMemoryUnit():
            yield _r("in_proj", hidden * mixer.inner)
            yield _r("out_proj", mixer.inner * hidden)
        case IllustrativeState() | NGramConv():
            return


def _a(module: str, params: int) -> Part:
    return Part("attention", module, params)


def _r(module: str, params: int) -> Part:
    return Part("recurrent", module, params)


def _small(component: str, module: str, params: int) -> Iterator[Part]:
    if params:
        yield Part(component, module, params, linear=False)


def _attention(m: Attention, hidden: int) -> Iterator[Part]:
    width = hidden if m.input_dim is None else m.input_dim
    query = m.heads * m.key_dim * (2 if m.output_gate else 1)
    yield _a("q_proj", width * query)
    biases = query
    norms = m.heads * m.key_dim
    if m.kv_source_layer is None:
        yield _a("k_proj", width * m.kv_heads * m.key_dim)
        if not m.shared_kv_weights:
            yield _a("v_proj", width * m.kv_heads * m.value_dim)
        biases += m.kv_heads * (m.key_dim + m.value_dim)
        norms += m.kv_heads * m.key_dim
    if m.output_projection:
        yield _a("o_proj", m.heads * m.value_dim * hidden)
    if m.indexer is not None:
        yield from _indexer(m.indexer, hidden, hidden)
    yield from _small("attention", "qkv_bias", biases if m.qkv_bias else 0)
    yield from _small("attention", "o_bias", hidden if m.output_bias else 0)
    head_norms = m.key_dim * (2 if m.kv_source_layer is None else 1)
    qk_norm = {"none": 0, "head": head_norms, "full": norms}[m.qk_norm]
    yield from _small("attention", "qk_norm", qk_norm)
    yield from _small("attention", "sinks", m.heads if m.sinks else 0)


def _latent(m: LatentAttention, hidden: int) -> Iterator[Part]:
    query = m.heads * (m.nope_dim + m.rope_dim)
    if m.q_lora_rank is None:
        yield _a("q_proj", hidden * query)
    else:
        yield _a("q_a_proj", hidden * m.q_lora_rank)
        yield _a("q_b_proj", m.q_lora_rank * query)
        yield from _small("attention", "q_a_layernorm", m.q_lora_rank)
    yield _a("kv_a_proj_with_mqa", hidden * (m.kv_lora_rank + m.rope_dim))
    yield from _small("attention", "kv_a_layernorm", m.kv_lora_rank)
    yield _a("kv_b_proj", m.kv_lora_rank * m.heads * (m.nope_dim + m.value_dim))
    yield _a("o_proj", m.heads * m.value_dim * hidden)
    if m.output_gate:
        yield _a("g_proj", hidden * m.heads * m.value_dim)
    if m.indexer is not None:
        yield from _indexer(m.indexer, hidden, m.q_lora_rank or hidden)


def _indexer(x: Indexer, hidden: int, query_input: int) -> Iterator[Part]:
    """Index weights; a layer that reads another's index has none of its own."""
    if not x.owned:
        return
    if x.form in ("qsa", "block"):
        yield _a("indexer.q_proj", hidden * x.query_heads * x.head_dim)
        yield _a("indexer.k_proj", hidden * x.key_heads * x.head_dim)
        yield from _small("attention", "indexer.norms", 2 * x.head_dim)
        return
    yield _a("indexer.wq_b", query_input * x.query_heads * x.head_dim)
    yield _a("indexer.weights_proj", hidden * x.query_heads)
    if x.form == "compressed":
        yield from _compressor("indexer", hidden, x.head_dim, x.tokens_per_entry, overlap=True)
        return
    yield _a("indexer.wk", hidden * x.head_dim)
    yield from _small("attention", "indexer.k_norm", 2 * x.head_dim)
    if x.form == "kpool":
        pooled = x.head_dim * (x.tokens_per_entry + hidden)
        yield from _small("attention", "indexer.kpool", pooled)


def _compressor(
    stem: str, hidden: int, head_dim: int, ratio: int, *, overlap: bool
) -> Iterator[Part]:
    """DeepSeek-V4's compressor; overlapping windows (ratio 4) project to two entries at once."""
    width = head_dim * (2 if overlap else 1)
    yield _a(f"{stem}.wkv", hidden * width)
    yield _a(f"{stem}.wgate", hidden * width)
    yield from _small("attention", f"{stem}.ape", ratio * width)
    yield from _small("attention", f"{stem}.norm", head_dim)


def _compressed(m: CompressedAttention, hidden: int) -> Iterator[Part]:
    inner = m.heads * m.head_dim
    yield _a("wq_a", hidden * m.q_lora_rank)
    yield _a("wq_b", m.q_lora_rank * inner)
    yield _a("wkv", hidden * m.head_dim)
    yield _a("wo_a", m.o_lora_rank * inner)
    yield _a("wo_b", m.o_groups * m.o_lora_rank * hidden)
    yield from _small("attention", "norms", m.q_lora_rank + m.head_dim)
    yield from _small("attention", "attn_sink", m.heads)
    if m.compress_ratio and m.kv_owned:
        overlap = m.indexer is not None
        yield from _compressor("compressor", hidden, m.head_dim, m.compress_ratio, overlap=overlap)
    if m.indexer is not None:
        yield from _indexer(m.indexer, hidden, m.q_lora_rank)


def _gdn(m: GatedDeltaNet, hidden: int) -> Iterator[Part]:
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    yield _r("in_proj_qkv", hidden * (2 * keys + values))
    yield _r("in_proj_z", hidden * values)
    yield _r("in_proj_b", hidden * m.value_heads)
    yield _r("in_proj_a", hidden * m.value_heads)
    yield _r("out_proj", values * hidden)
    yield from _small("recurrent", "conv1d", (2 * keys + values) * m.conv_kernel)
    yield from _small("recurrent", "decay", 2 * m.value_heads + m.value_dim)


def _kda(m: KimiDelta, hidden: int) -> Iterator[Part]:
    inner = m.heads * m.head_dim
    for name in ("q_proj", "k_proj", "v_proj"):
        yield _r(name, hidden * inner)
    gate, decay = m.full_rank_gate, m.full_rank_decay
    yield _r("f_proj", hidden * inner if decay else (hidden + inner) * m.head_dim)
    yield _r("g_proj", hidden * inner if gate else (hidden + inner) * m.head_dim)
    yield _r("b_proj", hidden * m.heads)
    yield _r("o_proj", inner * hidden)
    yield from _small("recurrent", "conv1d", 3 * inner * m.conv_kernel)
    yield from _small("recurrent", "decay", m.heads + inner + m.head_dim)


def _lightning(m: Lightning, hidden: int) -> Iterator[Part]:
    inner = m.heads * m.head_dim
    yield _r("qkv_proj", hidden * 3 * inner)
    yield _r("output_gate", hidden * inner)
    yield _r("out_proj", inner * hidden)
    yield from _small("recurrent", "norm", inner + (2 * m.head_dim if m.qk_norm else 0))


def _mamba1(m: Mamba1, hidden: int) -> Iterator[Part]:
    yield _r("in_proj", hidden * 2 * m.inner)
    yield _r("x_proj", m.inner * (m.dt_rank + 2 * m.state_dim))
    yield _r("dt_proj", m.dt_rank * m.inner)
    yield _r("out_proj", m.inner * hidden)
    yield from _small("recurrent", "conv1d", m.inner * (m.conv_kernel + m.conv_bias))
    yield from _small("recurrent", "decay", m.inner * (m.state_dim + 2))
    yield from _small("recurrent", "norms", (m.dt_rank + 2 * m.state_dim) if m.norms else 0)
    yield from _small("recurrent", "bias", (2 * m.inner + hidden) if m.proj_bias else 0)


def _mamba2(m: Mamba2, hidden: int) -> Iterator[Part]:
    inner = m.heads * m.head_dim
    both = 2 * m.groups * m.state_dim
    columns = m.conv_kernel + m.conv_bias
    if m.conv_over_groups:
        projected = 2 * inner + both + m.heads
        yield _r("in_proj", hidden * projected)
        yield from _small("recurrent", "conv1d", (inner + both) * columns)
        yield from _small("recurrent", "bias", (projected + hidden) if m.proj_bias else 0)
    else:
        rank = m.dt_rank or 0
        yield _r("in_proj", hidden * 2 * inner)
        yield _r("bcdt_proj", inner * (rank + both))
        yield _r("dt_proj", rank * m.heads)
        yield from _small("recurrent", "conv1d", inner * columns)
        yield from _small("recurrent", "norms", rank + both)
    yield _r("out_proj", inner * hidden)
    yield from _small("recurrent", "decay", 3 * m.heads)
    yield from _small("recurrent", "norm", inner if m.gated_norm else 0)


def _rglru(m: RGLRU, hidden: int) -> Iterator[Part]:
    width = m.lru_width
    yield _r("linear_x", hidden * width)
    yield _r("linear_y", hidden * width)
    yield _r("linear_out", width * hidden)
    yield from _small("recurrent", "bias", 2 * width + hidden)
    yield from _small("recurrent", "conv1d", width * (m.conv_kernel + 1))
    yield from _small("recurrent", "gates", 2 * (width * width // m.heads + width) + width)


def _rwkv7(m: RWKV7, hidden: int) -> Iterator[Part]:
    for name in ("r_proj", "k_proj", "v_proj", "o_proj"):
        yield _r(name, hidden * hidden)
    ranks = m.decay_lora + m.gate_lora + m.a_lora + m.v_lora
    yield _r("loras", 2 * hidden * ranks)
    biased = sum(1 for rank in (m.decay_lora, m.a_lora, m.v_lora) if rank)
    yield from _small("recurrent", "vectors", hidden * (6 + 3 + 2 + biased))


def _short_conv(m: ShortConv, hidden: int) -> Iterator[Part]:
    yield _r("in_proj", hidden * 3 * m.channels)
    yield _r("out_proj", m.channels * hidden)
    yield from _small("recurrent", "conv", m.channels * m.conv_kernel)
    yield from _small("recurrent", "bias", (4 * m.channels + hidden) if m.bias else 0)


def mlp_parts(mlp: DenseMLP | MoE, hidden: int) -> Iterator[Part]:
    """Every weight of an MLP; routed experts say how many a token meets."""
    if isinstance(mlp, DenseMLP):
        names = (
            ("gate_proj", "up_proj", "down_proj") if mlp.matrices == 3 else ("up_proj", "down_proj")
        )
        for name in names:
            yield Part("mlp", name, hidden * mlp.intermediate)
        if mlp.bias:
            yield from _small("mlp", "bias", (mlp.matrices - 1) * mlp.intermediate + hidden)
        return
    width = hidden if mlp.latent_dim is None else mlp.latent_dim
    each = mlp.matrices * width * mlp.intermediate
    yield Part("experts", "experts", mlp.experts * each, active_params=mlp.topk * each)
    if mlp.expert_bias:
        bias = (mlp.matrices - 1) * mlp.intermediate + hidden
        yield Part("experts", "experts_bias", mlp.experts * bias, False, mlp.topk * bias)
    if mlp.latent_dim is not None:
        yield Part("shared_experts", "latent_proj", 2 * hidden * mlp.latent_dim)
    if mlp.shared_intermediate:
        shared = mlp.matrices * hidden * mlp.shared_intermediate
        yield Part("shared_experts", "shared_experts", shared)
        yield from _small("shared_experts", "shared_gate", hidden if mlp.shared_gate else 0)
    yield from _small("routers", "gate", hidden * mlp.experts)
    yield from _small("routers", "gate_bias", mlp.experts if mlp.router_bias else 0)
    if mlp.dense_beside is not None:
        yield from mlp_parts(mlp.dense_beside, hidden)
