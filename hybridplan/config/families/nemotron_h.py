"""Nemotron-H and Nemotron-3: Mamba-2, attention, MLP and experts each in a slot of its own."""

from __future__ import annotations

from hybridplan.config.families import common, deepseek, gdn
from hybridplan.config.fields import Absent, Fields
from hybridplan.config.spec import DenseMLP, Layer, Mamba2, Mixer, ModelSpec, MoE, Source

LETTERS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "G": "gdn",
    "+": "mla",
    "D": "dsa",
}
WORDS = {name: name for name in ("mamba", "attention", "mlp", "moe")} | {
    "linear_attention": "gdn",
    "full_attention": "attention",
}


def read(f: Fields, root: Fields) -> ModelSpec:
    """``hybrid_override_pattern`` or ``layers_block_type``; num_hidden_layers, if given, agrees."""
    kinds, drafts = _slots(f)
    slots = _Slots(f)
    layers = [slots.layer(i, kind) for i, kind in enumerate(kinds)]
    draft_kinds = drafts or _draft_kinds(f)
    times = common.draft_count(f, "num_nextn_predict_layers") if draft_kinds else 0
    hidden = common.hidden_size(f)
    draft_layers = [
        slots.layer(
            len(kinds) + n * len(draft_kinds) + i,
            kind,
            {"mtp_projection": 2 * hidden * hidden + 3 * hidden} if i == 0 else {},
        )
        for n in range(times)
        for i, kind in enumerate(draft_kinds)
    ]
    return common.model(
        f,
        root,
        layers=layers,
        draft_layers=draft_layers,
        chunk_keys=("mamba_chunk_size", "chunk_size"),
    )


def _slots(f: Fields) -> tuple[list[str], list[str]]:
    named: list[tuple[str, list[str]]] = []
    drafts: list[str] = []
    if f.has("hybrid_override_pattern"):
        kinds, drafts = parse_pattern(f, "hybrid_override_pattern")
        named.append(("hybrid_override_pattern", kinds))
    for key in ("layers_block_type", "layer_types"):
        if f.has(key):
            named.append((key, common.listed(f, key, WORDS, None)))
    if not named:
        raise f.missing("hybrid_override_pattern", "layers_block_type")
    key, kinds = named[0]
    for other, listed in named[1:]:
        f.agree("the layers", key, kinds, other, listed)
    if not kinds:
        raise f.fail(f"{f.at(key)} is empty")
    count = f.layer_count(Absent(len(kinds), f"entries of {f.at(key)}", "derived"))
    f.per_layer(key, count, kinds)
    f.sources["model.pattern"] = Source(f.at(key))
    return kinds, drafts


def parse_pattern(f: Fields, key: str) -> tuple[list[str], list[str]]:
    """The slots of a pattern string, and those of the draft pattern behind a slash.

    A pipe separates pipeline stages and holds no layer (Megatron's own strings).
    """
    text = f.text("model.pattern", key)
    if len(text) > 1 << 16:
        raise f.fail(f"{f.at(key)} is {len(text)} letters long")
    main, _, draft = text.partition("/")
    slots: list[list[str]] = []
    for part in (main, draft.partition("/")[0]):
        letters = part.replace("|", "")
        unknown = next((letter for letter in letters if letter not in LETTERS), None)
        if unknown is not None:
            raise f.fail(
                f'{f.at(key)} holds "{unknown}", which is no layer; known are {" ".join(LETTERS)}'
            )
        slots.append([LETTERS[letter] for letter in letters])
    return slots[0], slots[1]


def _draft_kinds(f: Fields) -> list[str]:
    if f.has("mtp_layers_block_type"):
        return common.listed_drafts(f, "mtp_layers_block_type", WORDS)
    if f.has("mtp_hybrid_override_pattern"):
        return parse_pattern(f, "mtp_hybrid_override_pattern")[0]
    return []


class _Slots:
    """Reads each kind of slot once, when the first of its kind turns up."""

    def __init__(self, f: Fields) -> None:
        self.f = f
        self.mixers: dict[str, Mixer] = {}
        self.mlps: dict[str, DenseMLP | MoE] = {}

    def layer(self, index: int, kind: str, extra: dict[str, int] | None = None) -> Layer:
        if kind in ("mlp", "moe"):
            if kind not in self.mlps:
                self.mlps[kind] = _dense(self.f) if kind == "mlp" else _experts(self.f)
            return Layer(index, (), self.mlps[kind], norms=1, extra_params=extra or {})
        if kind not in self.mixers:
            self.mixers[kind] = _mixer(self.f, kind)
        return Layer(index, (self.mixers[kind],), None, norms=1, extra_params=extra or {})


def _mixer(f: Fields, kind: str) -> Mixer:
    if kind == "mamba":
        return _mamba(f)
    if kind == "gdn":
        return gdn.mixer(f)
    if kind == "mla":
        return common.latent(f)
    if kind == "dsa":
        return common.latent(f, indexer=deepseek.dsa_indexer(f))
    bias = f.flag("attention.qkv_bias", "attention_bias", False)
    return common.attention(
        f,
        head_dim=("head_dim", "attention_head_dim"),
        quotient=False,
        qkv_bias=bias,
        output_bias=bias,
    )


def _mamba(f: Fields) -> Mamba2:
    """heads x head width is the inner width; ``expand`` is wrong in the 4B and the Nano 9B."""
    return Mamba2(
        heads=f.whole("mamba2.heads", "mamba_num_heads", most=1 << 20),
        head_dim=f.whole("mamba2.head_dim", "mamba_head_dim", most=1 << 20),
        state_dim=f.whole("mamba2.state_dim", "ssm_state_size", most=1 << 20),
        groups=f.whole("mamba2.groups", "n_groups", "mamba_n_groups", most=1 << 16),
        conv_kernel=f.whole("mamba2.conv_kernel", "conv_kernel", most=1024),
        conv_bias=f.flag("mamba2.conv_bias", "use_conv_bias", True),
        proj_bias=f.flag("mamba2.proj_bias", "use_bias", False),
    )


def _matrices(f: Fields) -> int:
    act = f.text(
        "mlp.activation", "mlp_hidden_act", absent=Absent("relu2", "mlp_hidden_act absent")
    )
    return 2 if act in ("relu2", "relu", "gelu") else 3


def _dense(f: Fields) -> DenseMLP:
    bias = f.flag("mlp.bias", "mlp_bias", False)
    return common.dense(f, matrices=_matrices(f), bias=bias)


def _experts(f: Fields) -> MoE:
    each = f.whole("moe.shared_intermediate", "moe_shared_expert_intermediate_size", least=0)
    return common.moe(
        f,
        experts=("n_routed_experts",),
        shared_intermediate=common.shared_width(f, "n_shared_experts", each=each),
        matrices=_matrices(f),
        router_bias=True,
        latent_dim=f.maybe_whole("moe.latent_dim", "moe_latent_size"),
    )
