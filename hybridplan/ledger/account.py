"""The ledger of a model: what one request holds, by cache, by layer and by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger.caches import (
    STATE_PARTS,
    LayerCaches,
    State,
    TokenCache,
    model_caches,
    number,
    token_rate,
)
from hybridplan.ledger.checkpoints import DEFAULT_EVERY_TOKENS, checkpoints
from hybridplan.ledger.conventions import assumptions
from hybridplan.ledger.crossover import (
    attention_layers,
    attention_twin,
    crossover,
    recurrent_layers,
    request_bytes,
)
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.explain import figures
from hybridplan.ledger.pattern import layer_pattern, layer_sign
from hybridplan.ledger.result import (
    SCHEMA_VERSION,
    ContextLine,
    LayerLine,
    Ledger,
    Model,
    PerRequest,
    PerToken,
    Stage,
    StateLine,
    TokenCacheLine,
)
from hybridplan.ledger.sharding import pipeline_stages
from hybridplan.ledger.speculation import speculation
from hybridplan.ledger.transfer import transfer
from hybridplan.ledger.weights import weights

_FIRST_CONTEXT_TOKENS = 512
_UNBOUNDED_TOKENS = 262_144


def ledger(
    spec: ModelSpec,
    deployment: Deployment | None = None,
    *,
    contexts: Sequence[int] = (),
    checkpoint_every: Sequence[int] = (),
) -> Ledger:
    """The ledger of ``spec`` served as ``deployment`` says (default: vLLM on one rank).

    ``contexts`` are request lengths in tokens (default: 512 to the model's maximum, by fours);
    ``checkpoint_every`` adds checkpoint spacings to 256, 1024 and 4096. Raises InputError where
    sizes do not divide over ranks, or a dtype does not fit a cache.
    """
    deployment = deployment or Deployment()
    lengths = tuple(contexts) or default_contexts(spec.max_tokens)
    if min(lengths) < 1:
        raise InputError(f"a context of {min(lengths)} tokens is not possible; 1 is the least")
    caches = model_caches(spec, deployment)
    spacings = tuple(dict.fromkeys((*DEFAULT_EVERY_TOKENS, *checkpoint_every)))
    account = Ledger(
        SCHEMA_VERSION,
        _model(spec),
        _resolved(caches, deployment),
        token_lines(caches, deployment.tp),
        state_lines(caches, deployment.tp),
        _per_token(spec, deployment, caches),
        _per_request(caches, deployment.tp),
        _context_lines(spec, deployment, caches, lengths),
        crossover(spec, deployment),
        checkpoints(caches, spacings),
        speculation(spec, deployment),
        transfer(caches, lengths, spacings),
        weights(spec),
        _stages(caches, deployment, max(lengths)),
        _replicated(caches, deployment),
        assumptions(spec, deployment),
        tuple(
            LayerLine(
                c.index,
                layer_sign(x),
                x.mlp.kind if x.mlp else "",
                c.reads_layer,
                c.tokens,
                c.states,
            )
            for c, x in zip(caches, spec.layers, strict=True)
        ),
        (),
    )
    chains = figures(spec, account, deployment)
    return replace(account, figures=tuple(chains.values()))


def default_contexts(max_tokens: int) -> tuple[int, ...]:
    """512, 2048, ... up to the model's maximum, which is always the last.

    A maximum of 0 (a recurrent model states none) counts as 262,144.
    """
    max_tokens = max_tokens or _UNBOUNDED_TOKENS
    lengths = []
    tokens = _FIRST_CONTEXT_TOKENS
    while tokens < max_tokens:
        lengths.append(tokens)
        tokens *= 4
    return (*lengths, max_tokens)


def token_lines(layers: Sequence[LayerCaches], tp: int) -> tuple[TokenCacheLine, ...]:
    """Per-token caches, equal ones together, in order of first appearance."""
    counts: dict[TokenCache, int] = {}
    for layer in layers:
        for cache in layer.tokens:
            counts[cache] = counts.get(cache, 0) + 1
    lines = []
    for cache, count in counts.items():
        rate = Fraction(count * cache.bytes_per_entry, cache.tokens_per_entry * cache.context_ranks)
        lines.append(
            TokenCacheLine(
                cache.name,
                count,
                cache.heads,
                cache.key_dim,
                cache.value_dim,
                cache.dtype,
                cache.bytes_per_entry,
                cache.tokens_per_entry,
                cache.window_tokens,
                number(rate),
                number(rate * tp),
                cache.copies,
                cache.context_ranks,
            )
        )
    return tuple(lines)


def state_lines(layers: Sequence[LayerCaches], tp: int) -> tuple[StateLine, ...]:
    """Fixed states, equal ones of the same mixer together, in order of first appearance."""
    counts: dict[State, int] = {}
    for layer in layers:
        for state in layer.states:
            counts[state] = counts.get(state, 0) + 1
    return tuple(
        StateLine(
            state.name,
            state.mixer,
            count,
            state.shape,
            state.dtype,
            state.bytes,
            count * state.bytes,
            count * state.bytes * tp,
            state.copies,
            state.checkpointed,
        )
        for state, count in counts.items()
    )


def _model(spec: ModelSpec) -> Model:
    return Model(
        spec.name,
        spec.model_type,
        spec.architecture,
        layer_pattern(spec.layers),
        len(spec.layers),
        attention_layers(spec),
        recurrent_layers(spec),
        spec.max_tokens,
        spec.dtype,
        spec.file,
        spec.confidence,
        spec.notes,
    )


def _resolved(layers: Sequence[LayerCaches], deployment: Deployment) -> Deployment:
    tokens = [c.dtype for layer in layers for c in layer.tokens if c.name != "index"]
    states = [s.dtype for layer in layers for s in layer.states if s.name == "state"]
    convs = [s.dtype for layer in layers for s in layer.states if s.name == "conv"]
    return replace(
        deployment,
        kv_dtype=next(iter(tokens), None),
        state_dtype=next(iter(states), None),
        conv_dtype=next(iter(convs), None),
    )


def _per_token(spec: ModelSpec, deployment: Deployment, layers: Sequence[LayerCaches]) -> PerToken:
    twin = attention_twin(spec)
    growing = token_rate(layers, windowed=False)
    return PerToken(
        growing,
        token_rate(layers, windowed=True),
        token_rate(model_caches(twin, deployment), windowed=False) if twin else None,
        growing * deployment.tp,
    )


def _per_request(layers: Sequence[LayerCaches], tp: int) -> PerRequest:
    sums = {"state": 0, "conv": 0, "other": 0}
    for layer in layers:
        for state in layer.states:
            sums[STATE_PARTS.get(state.name, "other")] += state.bytes
    fixed = sum(sums.values())
    return PerRequest(sums["state"], sums["conv"], sums["other"], fixed, fixed * tp)


def _context_lines(
    spec: ModelSpec,
    deployment: Deployment,
    layers: Sequence[LayerCaches],
    lengths: Sequence[int],
) -> tuple[ContextLine, ...]:
    twin = attention_twin(spec)
    twin_at = request_bytes(twin, deployment) if twin else None
    fixed = sum(layer.state_bytes for layer in layers)
    hybrid_at = request_bytes(spec, deployment)
    lines = []
    for tokens in lengths:
        hybrid = hybrid_at(tokens)
        other = twin_at(tokens) if twin_at else None
        ratio = other / hybrid if other is not None and hybrid else None
        lines.append(ContextLine(tokens, hybrid - fixed, fixed, hybrid, other, ratio))
    return tuple(lines)


def _stages(
    layers: tuple[LayerCaches, ...], deployment: Deployment, tokens: int
) -> tuple[Stage, ...]:
    stages = pipeline_stages(layers, deployment.pp, deployment.engine)
    return tuple(
        Stage(
            stage[0].index,
            stage[-1].index,
            token_rate(stage, windowed=False),
            sum(layer.state_bytes for layer in stage),
            sum(layer.token_bytes(tokens) + layer.state_bytes for layer in stage),
        )
        for stage in stages
    )


def _replicated(layers: Sequence[LayerCaches], deployment: Deployment) -> tuple[str, ...]:
    """What tensor parallel ranks hold more than once, and how often."""
    repeated: list[tuple[str, int]] = [(c.name, c.copies) for x in layers for c in x.tokens]
    repeated += [(s.name, s.copies) for x in layers for s in x.states]
    return tuple(
        f"{name} of {repeated.count((name, copies))} layers, {copies} times over "
        f"{deployment.tp} ranks"
        for name, copies in dict.fromkeys(repeated)
        if copies > 1
    )
