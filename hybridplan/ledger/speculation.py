"""What draft tokens cost in states: snapshots, a wider window, and the ways around snapshots.

Rules: vLLM 0.33 (``num_speculative_blocks``, ``use_replayssm``, RecoverSSM of Kimi KDA), SGLang
0.5.23 (intermediate states; ReplaySSM rings), transformers 5.24 (recording); state_recovery.md 1-4.
Letters: n drafts, D = n + 1 tokens in a verify pass, K convolution kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hybridplan.config.spec import KimiDelta, Mamba2, Mixer, ModelSpec
from hybridplan.ledger import conventions
from hybridplan.ledger.caches import LayerCaches, draft_caches, model_caches, token_rate
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.sglang.replay import verify_ring_bytes

RING_ROWS = 16  # default of --replayssm-buffer-len and of linear_replayssm_cache_len


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to be able to undo rejected drafts: bytes a request needs for it on one rank.

    ``extra_bytes`` come on top of the one running state. ``rule`` says how they are counted and
    when the engine allows it.
    """

    name: str
    extra_bytes: int
    rule: str


@dataclass(frozen=True, slots=True)
class Speculation:
    """Costs of ``drafts`` speculative tokens per request, on one tensor parallel rank.

    ``state_bytes`` is one state with the convolution as wide as drafts make it;
    ``wider_conv_bytes`` the growth over no drafts. ``draft_kv_bytes_per_token`` is the KV of the
    checkpoint's MTP layers. ``schemes`` begin with the engine's default.
    """

    drafts: int
    state_bytes: int
    wider_conv_bytes: int
    draft_layers: int
    draft_kv_bytes_per_token: float
    schemes: tuple[Scheme, ...]
    notes: tuple[str, ...]


def speculation(spec: ModelSpec, deployment: Deployment) -> Speculation:
    """The cost of ``deployment.drafts`` drafts, or of one where it is 0."""
    drafts = max(1, deployment.drafts)
    with_drafts = replace(deployment, drafts=drafts)
    layers = model_caches(spec, with_drafts)
    plain = _states(model_caches(spec, replace(deployment, drafts=0)))
    widened = _states(layers)
    mtp = draft_caches(spec, with_drafts)
    return Speculation(
        drafts,
        widened,
        widened - plain,
        len(mtp),
        token_rate(mtp),
        _schemes(spec, with_drafts, layers) if widened else (),
        _notes(deployment) if widened else (),
    )


def _states_word(number: int) -> str:
    return "1 state" if number == 1 else f"{number} states"


def _states(layers: Sequence[LayerCaches]) -> int:
    """Bytes of recurrent states and their windows; rings and compressors are not rolled back."""
    rolled_back = ("state", "conv", "ngram_conv", "token_shift")
    return sum(s.bytes for layer in layers for s in layer.states if s.name in rolled_back)


def _schemes(
    spec: ModelSpec, deployment: Deployment, layers: Sequence[LayerCaches]
) -> tuple[Scheme, ...]:
    n, state = deployment.drafts, _states(layers)
    if deployment.engine == "vllm":
        schemes = [
            Scheme(
                "snapshots, prefix caching off",
                n * state,
                f"{_states_word(n)} beside the running one",
            ),
            Scheme(
                "snapshots, align mode",
                (1 + n) * state,
                f"{_states_word(n)} and the previous checkpoint beside the running one; layers "
                "whose kernel exports checkpoints in prefill add one more",
            ),
        ]
        return (*schemes, *_vllm_replay(spec, deployment))
    if deployment.engine == "sglang":
        return (_sglang_snapshots(layers, n), *_sglang_replay(spec, deployment))
    if deployment.engine == "llama.cpp":
        return (Scheme("rollback states", n * state, f"{_states_word(n)} more a sequence"),)
    return ()


def _notes(deployment: Deployment) -> tuple[str, ...]:
    if deployment.engine == "transformers":
        return (
            "transformers never rolls a recurrent state back; models marked stateful are refused "
            "for assisted generation, and only layers with nothing but a convolution can be undone",
        )
    if deployment.engine == "mlx":
        return ("no rule for drafts on hybrid models is known for mlx",)
    return ()


def _sglang_snapshots(layers: Sequence[LayerCaches], drafts: int) -> Scheme:
    """D states a request, and one strip of K - 1 + n = D + K - 2 conv columns (linear chain)."""
    tokens = drafts + 1
    states = sum(s.bytes for layer in layers for s in layer.states if s.name == "state")
    strip = 0
    for layer in layers:
        for state in layer.states:
            if state.name == "conv":
                columns, channels = state.shape
                strip += (columns + drafts) * channels * element_bytes(state.dtype)
    return Scheme(
        "intermediate states",
        tokens * states + strip,
        f"{tokens} states and one strip of conv columns a running request; the memory split "
        f"charges {tokens} whole slots, {tokens * _states(layers):,} bytes",
    )


def ring_record_bytes(mixer: Mixer, spec: ModelSpec, deployment: Deployment) -> int:
    """Bytes of one vLLM ReplaySSM record of a Mamba-2 layer: x, dt and B of one token."""
    if not isinstance(mixer, Mamba2):
        return 0
    act = element_bytes(conventions.model_dtype(spec, deployment))
    heads = mixer.heads // deployment.tp
    groups = mixer.groups // deployment.tp if mixer.groups % deployment.tp == 0 else 1
    return heads * mixer.head_dim * act + heads * 4 + groups * mixer.state_dim * act


def _records(spec: ModelSpec, count: Callable[[Mixer], int]) -> int:
    return sum(count(mixer) for layer in spec.layers for mixer in layer.mixers)


def _vllm_replay(spec: ModelSpec, deployment: Deployment) -> list[Scheme]:
    n, tp = deployment.drafts, deployment.tp
    schemes = []
    record = _records(spec, lambda mixer: ring_record_bytes(mixer, spec, deployment))
    if record and n + 1 <= RING_ROWS:
        rows = RING_ROWS + 1 + n
        schemes.append(
            Scheme(
                "ReplaySSM (--use-replayssm)",
                rows * record,
                f"a ring of {rows} records in each state page; with drafts it needs the "
                "FlashInfer backend and prefix caching off, and no KV connector",
            )
        )
    if spec.model_type in ("kimi_linear", "kimi_k3"):
        act = element_bytes(conventions.model_dtype(spec, deployment))

        def per_token(mixer: Mixer) -> int:
            if not isinstance(mixer, KimiDelta):
                return 0
            return mixer.heads // tp * (4 * mixer.head_dim + 2 * mixer.head_dim * act)

        schemes.append(
            Scheme(
                "RecoverSSM (--use-replayssm)",
                (n + 1) * _records(spec, per_token),
                f"records of {n + 1} tokens outside the KV cache; works with align mode and KV "
                "connectors, needs Triton and pp 1",
            )
        )
    return schemes


def _sglang_replay(spec: ModelSpec, deployment: Deployment) -> list[Scheme]:
    kinds = {mixer.kind for layer in spec.layers for mixer in layer.mixers}
    if not kinds & {"gdn", "kda"}:
        return []
    return [
        Scheme(
            "ReplaySSM verify (--enable-linear-replayssm-spec)",
            sum(verify_ring_bytes(spec, deployment, RING_ROWS)),
            f"a ring of {RING_ROWS} records or more a request; linear draft chains only, forces "
            "fp32 states, not on a prefill server",
        )
    ]
