"""Why a figure of the ledger is what it is: formula, inputs and the config keys behind them.

Every formula is an expression in the names of its inputs, and gives the figure's value when it is
evaluated (``ceil`` is the only function beside ``max``); a test does so for every shipped model.
The one exception says "bisected" in its source: windows and pooled entries leave no closed form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hybridplan.config.spec import (
    Attention,
    CompressedAttention,
    How,
    LatentAttention,
    Mixer,
    ModelSpec,
    NGramConv,
)
from hybridplan.errors import InputError
from hybridplan.ledger.caches import STATE_PARTS, State, TokenCache, model_caches
from hybridplan.ledger.conventions import assumed, conv_columns
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.figure import Figure, Input, weakest
from hybridplan.ledger.kv_formats import PACKED
from hybridplan.ledger.result import Ledger

ENGINE_RULES = {
    "vllm": "vLLM 0.33 v1/kv_cache_interface.py, model_executor/layers/mamba/mamba_utils.py",
    "sglang": "SGLang 0.5.23 mem_cache/memory_pool.py, configs/mamba_utils.py",
    "transformers": "transformers 5.24 cache_utils.py",
    "llama.cpp": "llama.cpp: state and convolution fp32, fitted to logged pools",
    "mlx": "MLX: state in the model's dtype, KV in steps of 256 tokens, fitted to logged snapshots",
}
_STATE = {
    "gdn": "(value_heads // tp) * key_dim * value_dim",
    "kda": "(heads // tp) * head_dim * head_dim",
    "lightning": "(heads // tp) * head_dim * head_dim",
    "mamba1": "(inner // tp) * state_dim",
    "mamba2": "(heads // tp) * head_dim * state_dim",
    "rglru": "(lru_width // tp)",
    "rwkv7": "(heads // tp) * head_dim * head_dim",
    "state": "(state_elements // tp)",
}
_CHANNELS = {
    "gdn": "(2 * key_heads * key_dim + value_heads * value_dim) // tp",
    "kda": "3 * heads * head_dim // tp",
    "mamba1": "(inner // tp)",
    "mamba2": "((heads // tp) * head_dim + 2 * groups_per_rank * state_dim)",
    "rglru": "(lru_width // tp)",
    "short_conv": "channels // tp",
    "ngram_conv": "channels",
    "state": "conv_channels // tp",
}
_NAME = re.compile(r"[a-z_]+")
_FUNCTIONS = ("max", "ceil")


class _Chain:
    """Builds figures in order; later ones may name earlier ones as inputs."""

    def __init__(self, spec: ModelSpec, deployment: Deployment) -> None:
        self.spec = spec
        self.deployment = deployment
        self.rule = ENGINE_RULES[deployment.engine]
        self.figures: dict[str, Figure] = {}

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        formula: str,
        inputs: tuple[Input, ...],
        source: str,
    ) -> str:
        free, suffix = name, 2
        while free in self.figures:
            free, suffix = f"{name}_{suffix}", suffix + 1
        figure = Figure(free, value, unit, formula, inputs, weakest(inputs), source)
        self.figures[free] = figure
        return free

    def figure_input(self, name: str, alias: str = "") -> Input:
        figure = self.figures[name]
        return Input(alias or name, figure.value, f"figure {name}", figure.how)

    def config_input(self, mixer: Mixer, name: str) -> Input:
        source = self.spec.sources.get(f"{mixer.kind}.{name}")
        value = getattr(mixer, name)
        if source is None:
            return Input(name, value, f"{mixer.kind}.{name} of the layer list", "derived")
        return Input(name, value, source.key, source.how)

    def index_row(self, cache: TokenCache) -> str:
        source = self.spec.sources.get("indexer.head_dim")
        width = f"{source.key if source else 'index head width'} {cache.key_dim}"
        if cache.dtype == "uint8":
            return f"{width}: fp8, and a 4-byte scale per 128 elements"
        return f"{width} in {cache.dtype}"

    def entry_tokens(self, cache: TokenCache) -> Input:
        kind = "indexer.tokens_per_entry" if cache.name == "index" else "compressed.compress_ratio"
        source = self.spec.sources.get(kind)
        if source is None:
            return Input("tokens_per_entry", cache.tokens_per_entry, "the layer list", "derived")
        return Input("tokens_per_entry", cache.tokens_per_entry, source.key, source.how)

    def layer_count(self, count: int) -> Input:
        source = self.spec.sources.get("model.pattern")
        if source is None:
            return Input("layers", count, "the layer list", "derived")
        return Input("layers", count, f"layers of this kind in {source.key}", "derived")

    def inputs_of(
        self, formula: str, mixer: Mixer, known: Mapping[str, Input]
    ) -> tuple[Input, ...]:
        names = dict.fromkeys(n for n in _NAME.findall(formula) if n not in _FUNCTIONS)
        return tuple(known[n] if n in known else self.config_input(mixer, n) for n in names)

    def common(self, mixer: Mixer, count: int, dtype: str, chosen_by: str) -> dict[str, Input]:
        known = {
            "layers": self.layer_count(count),
            "tp": Input("tp", self.deployment.tp, "deployment"),
            "dcp": Input("dcp", self.deployment.dcp, "deployment"),
        }
        if dtype not in PACKED:
            origin = f"{dtype}, {chosen_by}"
            how: How = "exact" if chosen_by.startswith("--") else "derived"
            if assumed(mixer.kind, self.deployment):
                how = "assumed"
            known["element_bytes"] = Input("element_bytes", element_bytes(dtype), origin, how)
        return known


def figures(spec: ModelSpec, ledger: Ledger, deployment: Deployment) -> dict[str, Figure]:
    """Every figure of ``ledger`` by name, inputs before what is computed from them.

    ``deployment`` is the one the user asked for, before the engine's choices were filled in.
    """
    chain = _Chain(spec, deployment)
    tokens = _token_figures(chain)
    states = _state_figures(chain)
    _sums(chain, ledger, tokens, states)
    _weights(chain, ledger)
    return chain.figures


def select(known: Sequence[Figure], wanted: str) -> tuple[Figure, ...]:
    """The wanted figure ("all": every one). Raises InputError with the names there are."""
    if wanted == "all":
        return tuple(known)
    found = tuple(figure for figure in known if figure.name == wanted)
    if not found:
        names = ", ".join(figure.name for figure in known)
        raise InputError(f"no figure is called {wanted!r}; there are {names}, and all")
    return found


def _chosen(flag: str | None, name: str, engine: str) -> str:
    return f"--{name}" if flag is not None else f"what {engine} picks for this model"


def _held(chain: _Chain) -> tuple[dict[TokenCache, list[Mixer]], dict[State, list[Mixer]]]:
    """The mixers behind each cache and each state, one for every layer that has it."""
    tokens: dict[TokenCache, list[Mixer]] = {}
    states: dict[State, list[Mixer]] = {}
    caches = model_caches(chain.spec, chain.deployment)
    attending = (Attention, LatentAttention, CompressedAttention)
    for layer, held in zip(chain.spec.layers, caches, strict=True):
        for cache in held.tokens:
            reader: Mixer = next(m for m in layer.mixers if isinstance(m, attending))
            tokens.setdefault(cache, []).append(reader)
        for state in held.states:
            owner = next(m for m in layer.mixers if m.kind == state.mixer)
            states.setdefault(state, []).append(owner)
    return tokens, states


def _token_figures(chain: _Chain) -> list[tuple[str, bool]]:
    deployment = chain.deployment
    names = []
    for cache, mixers in _held(chain)[0].items():
        mixer = mixers[0]
        by = _chosen(deployment.kv_dtype, "kv-dtype", deployment.engine)
        known = chain.common(mixer, len(mixers), cache.dtype, by)
        entry = cache.bytes_per_entry // cache.heads
        known["row_bytes"] = Input(
            "row_bytes", entry, f"{cache.dtype} row of {cache.key_dim} + {cache.value_dim} elements"
        )
        known["tokens_per_entry"] = chain.entry_tokens(cache)
        if cache.name == "index":
            known["key_heads"] = Input("key_heads", cache.heads, "index keys stored")
            formula = "layers * key_heads * row_bytes"
            known["row_bytes"] = Input("row_bytes", entry, chain.index_row(cache))
        elif isinstance(mixer, Attention):
            heads = "max(1, kv_heads // tp)"
            row = "row_bytes" if cache.dtype in PACKED else "(key_dim + value_dim) * element_bytes"
            formula = f"layers * {heads} * {row}"
        elif isinstance(mixer, LatentAttention):
            packed = cache.dtype in PACKED
            row = "row_bytes" if packed else "(kv_lora_rank + rope_dim) * element_bytes"
            formula = f"layers * {row}"
        else:
            formula = "layers * row_bytes"
        if cache.tokens_per_entry > 1:
            formula += " / tokens_per_entry"
        if cache.context_ranks > 1:
            formula += " / dcp"
        value = len(mixers) * cache.bytes_per_entry / cache.tokens_per_entry / cache.context_ranks
        windowed = cache.window_tokens is not None
        name = chain.add(
            f"{cache.name}_window_bytes_per_token" if windowed else f"{cache.name}_bytes_per_token",
            int(value) if value.is_integer() else value,
            "bytes",
            formula,
            chain.inputs_of(formula, mixer, known),
            chain.rule,
        )
        names.append((name, windowed))
    return names


def _state_figures(chain: _Chain) -> dict[str, list[str]]:
    deployment = chain.deployment
    names: dict[str, list[str]] = {"state": [], "conv": [], "other": []}
    for state, mixers in _held(chain)[1].items():
        mixer = mixers[0]
        named = "state" if state.name == "state" else "conv"
        flag = deployment.state_dtype if named == "state" else deployment.conv_dtype
        by = _chosen(flag, f"{named}-dtype", deployment.engine)
        known = chain.common(mixer, len(mixers), state.dtype, by)
        kind = STATE_PARTS.get(state.name, "other")
        if kind == "state":
            formula = f"layers * {_STATE[mixer.kind]} * element_bytes"
        elif kind == "conv":
            known["columns"] = _columns(mixer, deployment)
            if mixer.kind == "mamba2":
                known["groups_per_rank"] = _groups(chain, mixer)
            formula = f"layers * {_CHANNELS[mixer.kind]} * columns * element_bytes"
        else:
            size = " x ".join(str(n) for n in state.shape)
            known["elements"] = Input("elements", state.elements, f"{state.name}: {size}")
            formula = "layers * elements * element_bytes"
        name = chain.add(
            f"{mixer.kind}_{state.name if kind == 'other' else kind}_bytes",
            len(mixers) * state.bytes,
            "bytes",
            formula,
            chain.inputs_of(formula, mixer, known),
            chain.rule,
        )
        names[kind].append(name)
    return names


def _columns(mixer: Mixer, deployment: Deployment) -> Input:
    kernel = getattr(mixer, "conv_kernel", 0)
    if isinstance(mixer, NGramConv):
        kernel = mixer.window_tokens + 1
    columns = conv_columns(kernel, mixer.kind, deployment)
    if columns == kernel:
        return Input("columns", columns, f"K = {kernel}: transformers keeps all K inputs")
    wider = columns - (kernel - 1)
    drafts = f", + {wider} drafts" if wider else ""
    return Input("columns", columns, f"K - 1 of K = {kernel}{drafts}")


def _groups(chain: _Chain, mixer: Mixer) -> Input:
    groups = int(getattr(mixer, "groups", 0))
    source = chain.config_input(mixer, "groups").origin
    if not getattr(mixer, "conv_over_groups", True):
        return Input("groups_per_rank", 0, "the convolution covers x only")
    tp = chain.deployment.tp
    if groups % tp:
        origin = f"{source}: {groups} groups do not divide over {tp} ranks, one each"
        return Input("groups_per_rank", 1, origin, "derived")
    return Input("groups_per_rank", groups // tp, f"{source}: {groups} groups / {tp}", "derived")


def _sum(chain: _Chain, name: str, value: float, unit: str, parts: list[str]) -> str:
    formula = " + ".join(parts) if parts else "0"
    inputs = tuple(chain.figure_input(part) for part in parts)
    return chain.add(name, value, unit, formula, inputs, "sum")


def _sums(
    chain: _Chain, ledger: Ledger, tokens: list[tuple[str, bool]], states: dict[str, list[str]]
) -> None:
    growing = [name for name, windowed in tokens if not windowed]
    _sum(chain, "bytes_per_token", ledger.per_token.bytes, "bytes", growing)
    _sum(chain, "state_bytes", ledger.per_request.state_bytes, "bytes", states["state"])
    _sum(chain, "conv_bytes", ledger.per_request.conv_bytes, "bytes", states["conv"])
    fixed = ["state_bytes", "conv_bytes", *states["other"]]
    _sum(chain, "request_bytes", ledger.per_request.bytes, "bytes", fixed)
    checkpoint = [part for part in fixed if not part.endswith("tail_ring_bytes")]
    _sum(chain, "checkpoint_bytes", ledger.checkpoints.checkpoint_bytes, "bytes", checkpoint)
    if not any(windowed for _, windowed in tokens) and chain.deployment.engine != "mlx":
        _closed_forms(chain, ledger)
    if ledger.crossover.tokens is not None and "crossover_tokens" not in chain.figures:
        chain.add(
            "crossover_tokens",
            ledger.crossover.tokens,
            "tokens",
            "the least n with request_bytes + caches(n) <= twin_caches(n)",
            (chain.figure_input("request_bytes"),),
            "bisected over n, with windows and unfinished entries counted as the engine does",
        )


def _weights(chain: _Chain, ledger: Ledger) -> None:
    held = ledger.weights
    source = "shapes of the model class, stored as the checkpoint says"
    for name, unit in (("params", "elements"), ("bytes", "bytes")):
        parts = tuple(
            Input(part.name, getattr(part, name), f"{part.name}, {held.method}", "derived")
            for part in held.components
        )
        total = held.total_params if name == "params" else held.total_bytes
        formula = " + ".join(part.name for part in parts) or "0"
        chain.add(f"weight_{name}", total, unit, formula, parts, source)


def _closed_forms(chain: _Chain, ledger: Ledger) -> None:
    """Figures that have a formula as long as no cache has a window."""
    one = all(
        line.tokens_per_entry == 1 and line.context_ranks == 1 for line in ledger.token_caches
    )
    twin = ledger.per_token.twin_bytes
    if twin is not None and ledger.crossover.tokens is not None:
        count = Input("twin_layers", ledger.crossover.twin_attention_layers, "every mixing layer")
        own = Input("attention_layers", ledger.crossover.hybrid_attention_layers, "the layer list")
        if twin * own.value == ledger.per_token.bytes * count.value:  # type: ignore[operator]
            per = chain.figure_input("bytes_per_token")
            chain.add(
                "twin_bytes_per_token",
                twin,
                "bytes",
                "bytes_per_token / attention_layers * twin_layers",
                (per, own, count),
                "the same model with its attention in every mixing layer",
            )
            if one:
                chain.add(
                    "crossover_tokens",
                    ledger.crossover.tokens,
                    "tokens",
                    "ceil(request_bytes / (twin_bytes_per_token - bytes_per_token))",
                    tuple(
                        chain.figure_input(name)
                        for name in ("request_bytes", "twin_bytes_per_token", "bytes_per_token")
                    ),
                    "hybrid <= twin from this context on",
                )
    if not one or not ledger.per_token.bytes:
        return
    for line in ledger.contexts:
        chain.add(
            f"hybrid_bytes_{line.tokens}",
            line.hybrid_bytes,
            "bytes",
            "request_bytes + tokens * bytes_per_token",
            (
                chain.figure_input("request_bytes"),
                Input("tokens", line.tokens, "--context"),
                chain.figure_input("bytes_per_token"),
            ),
            "one request",
        )
    for cost in ledger.checkpoints.costs:
        if cost.ratio is not None:
            chain.add(
                f"checkpoint_ratio_{cost.every_tokens}",
                cost.ratio,
                "ratio",
                "checkpoint_bytes / (every_tokens * bytes_per_token)",
                (
                    chain.figure_input("checkpoint_bytes"),
                    Input("every_tokens", cost.every_tokens, "--checkpoint-every"),
                    chain.figure_input("bytes_per_token"),
                ),
                "one checkpoint against the KV of the tokens it stands for",
            )
    if ledger.transfer.break_even_tokens is not None:
        chain.add(
            "break_even_tokens",
            ledger.transfer.break_even_tokens,
            "tokens",
            "ceil(checkpoint_bytes / bytes_per_token)",
            (chain.figure_input("checkpoint_bytes"), chain.figure_input("bytes_per_token")),
            "prefill-decode transfer: KV reaches the state's bytes",
        )
