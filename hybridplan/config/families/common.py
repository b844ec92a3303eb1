"""What the families share: the head of a model, its attention shapes, its MLPs, its layer lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import (
    MLP,
    Attention,
    DenseMLP,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    MoE,
    QKNorm,
    Source,
    Window,
)

CONTEXT_KEYS = (
    "max_position_embeddings",
    "model_max_length",
    "max_sequence_length",
    "seq_length",
    "n_positions",
)
TOPK_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k")
DTYPE_ABSENT = Absent("bfloat16", "no dtype or torch_dtype in the file: bfloat16, as engines take")


def model(
    f: Fields,
    root: Fields,
    *,
    layers: Iterable[Layer],
    tied_absent: bool = False,
    draft_layers: Iterable[Layer] = (),
    extra_params: Mapping[str, int] | None = None,
    prefix_tokens: int = 0,
    context_absent: Absent | None = None,
    final_norm_params: int | None = None,
    chunk_keys: tuple[str, ...] = ("mamba_chunk_size",),
) -> ModelSpec:
    """A ModelSpec from the keys that every family spells alike.

    ``f`` is the text config, ``root`` the whole file. ``context_absent`` stands in for a missing
    context length (a model without positions). ``chunk_keys`` spell the state's chunk, the first
    one there counts. The norm before the head counts one hidden vector
    unless ``final_norm_params`` says otherwise.
    """
    hidden = f.whole("model.hidden_size", "hidden_size", "d_model")
    extra = {"final_norm": hidden if final_norm_params is None else final_norm_params}
    extra.update(extra_params or {})
    return ModelSpec(
        name="",
        model_type="",
        architecture="",
        hidden_size=hidden,
        vocab_size=f.whole("model.vocab_size", "vocab_size", "padded_vocab_size"),
        tied_embeddings=_tied(f, root, tied_absent),
        max_tokens=_context(f, context_absent),
        dtype=_dtype(f, root),
        layers=tuple(layers),
        draft_layers=tuple(draft_layers),
        prefix_tokens=prefix_tokens,
        state_dtype=_state_dtype(f),
        state_chunk_tokens=f.maybe_whole(
            "model.state_chunk_tokens", *[key for key in chunk_keys if f.has(key)][:1]
        ),
        extra_params={key: value for key, value in extra.items() if value},
    )


def _tied(f: Fields, root: Fields, absent: bool) -> bool:
    spellings = ("tie_word_embeddings", "tie_embedding", "tie_embeddings")
    inner = f.maybe_flag("model.tied_embeddings", *spellings)
    outer = root.maybe_flag("model.tied_embeddings", *spellings) if root is not f else None
    if inner is not None and outer is not None and inner != outer:
        f.notes.append(
            f"tie_word_embeddings is {str(outer).lower()} at the top of the file and "
            f"{str(inner).lower()} in {f.path}; the top was taken, and only weight bytes depend "
            "on it"
        )
    if outer is not None:
        return outer
    if inner is not None:
        return inner
    f.record(
        "model.tied_embeddings",
        f"tie_word_embeddings absent: {str(absent).lower()}, the class's own rule",
        "assumed",
    )
    return absent


def _dtype(f: Fields, root: Fields) -> str:
    home = f if f.has("dtype") or f.has("torch_dtype") or root is f else root
    name = home.text("model.dtype", "dtype", "torch_dtype", absent=DTYPE_ABSENT)
    name = name.removeprefix("torch.")
    if name == "auto":
        f.sources["model.dtype"] = Source(f"{home.at('dtype')} is auto: bfloat16", "assumed")
        return "bfloat16"
    if name not in ("bfloat16", "float16", "float32"):
        raise f.fail(f"dtype {name!r} is none of bfloat16, float16 and float32")
    return name


def _context(f: Fields, absent: Absent | None) -> int:
    return f.whole(
        "model.max_tokens", *CONTEXT_KEYS, least=0 if absent else 1, most=1 << 32, absent=absent
    )


def _state_dtype(f: Fields) -> str | None:
    keys = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if not any(f.has(key) for key in keys):
        return None
    name = f.text("model.state_dtype", *keys)
    if name not in ("float32", "bfloat16", "float16"):
        raise f.fail(f"the state dtype {name!r} is none of float32, bfloat16 and float16")
    return name


def hidden_size(f: Fields) -> int:
    """The width of the residual stream."""
    return f.whole("model.hidden_size", "hidden_size")


def head_width(
    f: Fields, field: str, heads: int, *keys: str, quotient: bool = True, width: int | None = None
) -> int:
    """The width of a head: the key, or hidden / heads where the class computes it so."""
    absent = None
    if quotient and not any(f.has(key) for key in keys):
        total = hidden_size(f) if width is None else width
        if total % heads:
            raise f.fail(
                f"{f.at(keys[0])} is missing and the width {total} is not a multiple of "
                f"{heads} heads"
            )
        absent = Absent(
            total // heads, f"{f.at(keys[0])} absent: {total} / {heads} heads", "derived"
        )
    return f.whole(field, *keys, most=1 << 20, absent=absent)


def attention(
    f: Fields,
    *,
    head_dim: tuple[str, ...] = ("head_dim",),
    quotient: bool = True,
    kv_absent_is_heads: bool = False,
    window: Window | None = None,
    output_gate: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: QKNorm = "none",
    sinks: bool = False,
    indexer: Indexer | None = None,
) -> Attention:
    """GQA from num_attention_heads, num_key_value_heads and head_dim.

    ``kv_absent_is_heads``: the class reads a missing num_key_value_heads as multi-head attention.
    """
    heads = f.whole("attention.heads", "num_attention_heads", most=1 << 16)
    absent = None
    if kv_absent_is_heads:
        absent = Absent(heads, "num_key_value_heads absent: as many as heads", "derived")
    kv_heads = f.whole("attention.kv_heads", "num_key_value_heads", most=1 << 16, absent=absent)
    if heads % kv_heads:
        raise f.fail(
            f"{f.at('num_attention_heads')} is {heads}, not a multiple of "
            f"{f.at('num_key_value_heads')}, {kv_heads}"
        )
    width = head_width(f, "attention.key_dim", heads, *head_dim, quotient=quotient)
    f.sources["attention.value_dim"] = f.sources["attention.key_dim"]
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=width,
        value_dim=width,
        window=window,
        indexer=indexer,
        output_gate=output_gate,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        sinks=sinks,
    )


def latent(
    f: Fields, *, indexer: Indexer | None = None, output_gate: bool = False
) -> LatentAttention:
    """MLA from the DeepSeek names; head_dim and num_key_value_heads say nothing there."""
    return LatentAttention(
        heads=f.whole("mla.heads", "num_attention_heads", most=1 << 16),
        kv_lora_rank=f.whole("mla.kv_lora_rank", "kv_lora_rank", most=1 << 20),
        rope_dim=f.whole("mla.rope_dim", "qk_rope_head_dim", least=0, most=1 << 16),
        nope_dim=f.whole("mla.nope_dim", "qk_nope_head_dim", most=1 << 16),
        value_dim=f.whole("mla.value_dim", "v_head_dim", most=1 << 16),
        q_lora_rank=f.maybe_whole("mla.q_lora_rank", "q_lora_rank"),
        indexer=indexer,
        output_gate=output_gate,
    )


def expanded(f: Fields, field: str, key: str, hidden: int, absent: Absent | None = None) -> int:
    """An inner width the file gives as a multiple of the hidden width."""
    factor = f.whole(field, key, most=1024, absent=absent)
    read = f.sources[field]
    f.sources[field] = Source(
        f"{read.key} x hidden width {hidden}", "assumed" if read.how == "assumed" else "derived"
    )
    return factor * hidden


def sliding(f: Fields, *keys: str) -> Window:
    """A sliding window whose width the file must state."""
    names = keys or ("sliding_window",)
    return Window("sliding", f.whole("attention.window", *names))


def dense(f: Fields, *keys: str, matrices: int = 3, bias: bool = False) -> DenseMLP:
    """A dense MLP; ``matrices`` is 3 with a gate and 2 without."""
    width = f.whole("mlp.intermediate", *(keys or ("intermediate_size",)))
    return DenseMLP(width, matrices=matrices, bias=bias)


def moe(
    f: Fields,
    *,
    experts: tuple[str, ...],
    topk: tuple[str, ...] = TOPK_KEYS,
    width: tuple[str, ...] = ("moe_intermediate_size",),
    shared_intermediate: int = 0,
    matrices: int = 3,
    shared_gate: bool = False,
    router_bias: bool = False,
    latent_dim: int | None = None,
) -> MoE:
    """Routed experts; each tuple holds the spellings of one key."""
    count = f.whole("moe.experts", *experts, most=1 << 20)
    chosen = f.whole("moe.topk", *topk, most=1 << 20)
    if chosen > count:
        raise f.fail(f"{f.at(topk[0])} is {chosen} but there are only {count} experts")
    return MoE(
        experts=count,
        topk=chosen,
        intermediate=f.whole("moe.intermediate", *width),
        matrices=matrices,
        shared_intermediate=shared_intermediate,
        shared_gate=shared_gate,
        router_bias=router_bias,
        latent_dim=latent_dim,
    )


def shared_width(f: Fields, *keys: str, each: int) -> int:
    """Width of all shared experts: their number times the width of one."""
    count = f.maybe_whole("moe.shared_experts", *keys, least=0) or 0
    return count * each


def listed(f: Fields, key: str, known: Mapping[str, str], layers: int | None) -> list[str]:
    """A layer list translated by whole words; an unknown word is an error, never attention."""
    words = f.words(key)
    if layers is not None:
        f.per_layer(key, layers, words)
    for index, word in enumerate(words):
        if word not in known:
            raise f.fail(
                f'{f.at(key)} calls layer {index} "{word[:40]}", which this family does not have; '
                f"known are {', '.join(sorted(known))}"
            )
    f.sources["model.pattern"] = Source(f.at(key))
    return [known[word] for word in words]


def every(layers: int, period: int, offset: int, hit: str, miss: str) -> list[str]:
    """``hit`` where index % period == offset."""
    return [hit if i % period == offset else miss for i in range(layers)]


def stack(
    kinds: Sequence[str],
    mixers: Mapping[str, tuple[Mixer, ...]],
    mlps: Sequence[MLP | None],
    *,
    norms: int = 2,
    extra: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Layer]:
    """One Layer per kind, with the mixers of that kind and the MLP of that index."""
    extra = extra or {}
    return [
        Layer(index, mixers[kind], mlp, norms=norms, extra_params=extra.get(kind, {}))
        for index, (kind, mlp) in enumerate(zip(kinds, mlps, strict=True))
    ]


def drafts(
    count: int, mixer: tuple[Mixer, ...], mlp: MLP | None, first: int, extra: Mapping[str, int]
) -> list[Layer]:
    """``count`` next-token-prediction layers after the stack, each with its own extra weights."""
    return [Layer(first + i, mixer, mlp, extra_params=extra) for i in range(count)]


def draft_count(f: Fields, *keys: str) -> int:
    """How many next-token-prediction layers the file states; 0 where it is silent."""
    if not any(f.has(key) for key in keys):
        return 0
    return f.whole("model.draft_layers", *keys, least=0, most=64)


def sparse_steps(f: Fields, count: int, experts: MoE) -> list[MLP | None]:
    """Qwen's rule: MoE where (i + 1) % decoder_sparse_step == 0 and i is not in mlp_only_layers."""
    step = f.whole(
        "mlp.pattern",
        "decoder_sparse_step",
        absent=Absent(1, "decoder_sparse_step absent: every layer has experts"),
    )
    only = set(f.wholes("mlp_only_layers")) if f.has("mlp_only_layers") else set()
    sparse = [(i + 1) % step == 0 and i not in only for i in range(count)]
    if all(sparse):
        return [experts] * count
    plain = dense(f)
    return [experts if is_sparse else plain for is_sparse in sparse]


def listed_drafts(f: Fields, key: str, known: Mapping[str, str]) -> list[str]:
    """The layer list of one draft module; it does not speak for the stack."""
    before = f.sources.get("model.pattern")
    kinds = listed(f, key, known, None)
    if before is not None:
        f.sources["model.pattern"] = before
    return kinds
