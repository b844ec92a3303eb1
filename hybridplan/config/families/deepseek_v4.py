"""DeepSeek-V4 and V4.1: a window in every layer, and compressed KV with an index of its own."""

from __future__ import annotations

from dataclasses import replace

from hybridplan.config.families import common, moe_layers
from hybridplan.config.fields import Fields
from hybridplan.config.spec import CompressedAttention, Indexer, Layer, ModelSpec, MoE, Source

V4_RATIOS = {0: False, 4: True, 128: False}
WORDS = {
    "sliding_attention": "window",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``compress_ratios`` (0: window only), or layer_types with compress_rates."""
    count = f.layer_count()
    drafts = common.draft_count(f, "num_nextn_predict_layers")
    shapes = _ratios(f, count, drafts)
    ratios = [ratio for ratio, _ in shapes]
    kv_owners = _owners(f, "kv_source_layer_ids", count, ratios)
    index_owners = _owners(f, "index_source_layer_ids", count, ratios)
    shape = _Shape(f)
    experts = moe_layers.deepseek_experts(f)
    hidden = common.hidden_size(f)
    streams = f.whole("model.streams", "hc_mult", most=64)
    per_site = (2 + streams) * streams * (streams * hidden + 1) + 3
    at_head = streams * streams * hidden + streams + 1
    hashed = f.maybe_whole("moe.hash_layers", "num_hash_layers", least=0) or 0
    layers = []
    for i, (ratio, indexed) in enumerate(shapes):
        mixer = shape.mixer(ratio, kv_owners[i], index_owners[i] if indexed else None)
        extra = {"mixing_streams": 2 * per_site}
        if i < hashed:
            extra["hash_table"] = f.whole("model.vocab_size", "vocab_size") * experts.topk
        mlp = experts if i >= hashed else _hashed(experts)
        layers.append(Layer(i, (mixer,), mlp, extra_params=extra))
    if f.has("engram_layer_ids"):
        f.notes.append(
            "the engram tables (engram_*) are hundreds of billions of parameters that sit in host "
            "memory; they are listed apart from the model's own weights"
        )
    return common.model(
        f,
        root,
        layers=layers,
        draft_layers=common.drafts(
            drafts,
            (shape.mixer(0, True, None),),
            _draft_experts(f, experts),
            count,
            moe_layers.mtp_extra(f) | {"mixing_streams": 2 * per_site + at_head},
        ),
        extra_params={
            "mixing_streams": at_head,
            "engram_tables": _engram(f),
        },
    )


def _hashed(experts: MoE) -> MoE:
    """The first layers route by a table of token ids and have no score bias."""
    return replace(experts, router_bias=False)


def _draft_experts(f: Fields, experts: MoE) -> MoE:
    """V4.1's draft layers have fewer experts of their own (dspark_*)."""
    if not f.has("dspark_n_routed_experts"):
        return experts
    return replace(
        experts,
        experts=f.whole("moe.draft_experts", "dspark_n_routed_experts", most=1 << 20),
        topk=f.whole("moe.draft_topk", "dspark_num_experts_per_tok", most=1 << 20),
    )


class _Shape:
    """The widths that all layers share, read once."""

    def __init__(self, f: Fields) -> None:
        self.heads = f.whole("compressed.heads", "num_attention_heads", most=1 << 16)
        self.head_dim = f.whole("compressed.head_dim", "head_dim", most=1 << 16)
        self.rope_dim = f.whole("compressed.rope_dim", "qk_rope_head_dim", least=0, most=1 << 16)
        self.window = f.whole("compressed.window_tokens", "sliding_window")
        self.q_rank = f.whole("compressed.q_lora_rank", "q_lora_rank")
        self.o_rank = f.whole("compressed.o_lora_rank", "o_lora_rank")
        self.o_groups = f.whole("compressed.o_groups", "o_groups", most=1 << 16)
        self.index_dim = f.whole("indexer.head_dim", "index_head_dim", most=1 << 16)
        self.index_heads = f.whole("indexer.query_heads", "index_n_heads", most=1 << 16)
        self.topk = f.maybe_whole("indexer.topk_tokens", "index_topk")

    def mixer(self, ratio: int, kv_owned: bool, index_owned: bool | None) -> CompressedAttention:
        indexer = None
        if index_owned is not None:
            indexer = Indexer(
                head_dim=self.index_dim,
                query_heads=self.index_heads,
                tokens_per_entry=ratio,
                owned=index_owned,
                topk_tokens=self.topk,
                form="compressed",
            )
        return CompressedAttention(
            heads=self.heads,
            head_dim=self.head_dim,
            rope_dim=self.rope_dim,
            window_tokens=self.window,
            compress_ratio=ratio,
            q_lora_rank=self.q_rank,
            o_lora_rank=self.o_rank,
            o_groups=self.o_groups,
            kv_owned=kv_owned,
            indexer=indexer,
        )


def _ratios(f: Fields, count: int, drafts: int) -> list[tuple[int, bool]]:
    """The compression ratio of each layer, and whether an index picks what it reads."""
    by_ratio = _by_ratio(f, count, drafts) if f.has("compress_ratios") else None
    if not f.has("layer_types"):
        if by_ratio is None:
            raise f.missing("compress_ratios", "layer_types")
        f.sources["model.pattern"] = Source(f.at("compress_ratios"))
        return by_ratio
    kinds = common.listed(f, "layer_types", WORDS, count)
    if by_ratio is None:
        rates = f.section("compress_rates")
        known = {
            short: rates.whole("compressed.compress_ratio", word)
            for word, short in WORDS.items()
            if short in kinds and short != "window"
        }
        return [(known.get(kind, 0), kind == "csa") for kind in kinds]
    windows = ["window" if ratio == 0 else "compressed" for ratio, _ in by_ratio]
    named = ["window" if kind == "window" else "compressed" for kind in kinds]
    f.agree("the compressed layers", "layer_types", named, "compress_ratios", windows)
    return by_ratio


def _by_ratio(f: Fields, count: int, drafts: int) -> list[tuple[int, bool]]:
    """V4: 4 to 1 is sparse with an index, 128 to 1 is read whole. V4.1: all have an index."""
    listed = f.wholes("compress_ratios", most=1 << 20)
    if len(listed) == count + drafts:
        listed = listed[:count]
    f.per_layer("compress_ratios", count, listed)
    f.sources["compressed.compress_ratio"] = Source(f.at("compress_ratios"))
    if f.has("index_source_layer_ids"):
        return [(ratio, ratio > 0) for ratio in listed]
    for ratio in listed:
        if ratio not in V4_RATIOS:
            raise f.fail(
                f"{f.at('compress_ratios')} holds {ratio}; DeepSeek-V4 knows "
                f"{', '.join(map(str, V4_RATIOS))}, and another ratio does not say whether it "
                "has an index"
            )
    return [(ratio, V4_RATIOS[ratio]) for ratio in listed]


def _owners(f: Fields, key: str, count: int, ratios: list[int]) -> list[bool]:
    """Whether each layer stores its own; a compressed layer reads the nearest owner before it."""
    if not f.has(key):
        return [True] * count
    owners = set(f.wholes(key, most=count - 1))
    first = next((i for i, ratio in enumerate(ratios) if ratio), None)
    if first is not None and first not in owners:
        raise f.fail(f"{f.at(key)} has no layer before {first}, the first compressed one")
    return [i in owners or ratio == 0 for i, ratio in enumerate(ratios)]


def _engram(f: Fields) -> int:
    if not f.has("engram_layer_ids"):
        return 0
    rows = f.wholes("engram_num_embeddings")
    return sum(rows) * f.whole("model.engram_dim", "engram_head_dim", most=1 << 20)
