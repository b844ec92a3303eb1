"""What a user asks of a plan, and the bytes it then works on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError, RefusalError
from hybridplan.ledger import memory
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.figure import Figure
from hybridplan.ledger.gpu import Gpu
from hybridplan.ledger.lengths.distribution import Lengths
from hybridplan.ledger.planning.result import Memory
from hybridplan.ledger.planning.weights import rank_weights
from hybridplan.ledger.size import gib
from hybridplan.ledger.vllm.options import Generation, VllmOptions

_GENERATIONS: dict[str, Generation] = {
    "sm80": "sm80",
    "sm86": "sm80",
    "sm89": "sm89",
    "sm90": "sm90",
    "sm100": "sm100",
    "sm103": "sm100",
    "sm120": "sm120",
    "sm121": "sm120",
}


@dataclass(frozen=True, slots=True)
class MemoryAsk:
    """Either ``kv_memory_bytes`` (what the boot log calls available) or a GPU with allowances.

    None is "not said": weights come from the ledger, the others from stated assumptions.
    ``utilisation`` is ``--gpu-memory-utilization`` (SGLang: ``--mem-fraction-static``).
    """

    gpu: Gpu | None = None
    kv_memory_bytes: int | None = None
    utilisation: float = memory.VLLM_UTILISATION
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.gpu is None and self.kv_memory_bytes is None:
            raise InputError(
                "no memory was given; name a card with --gpu h200 or a size with --kv-memory 42GiB"
            )
        if not 0 < self.utilisation <= 1:
            raise InputError(
                f"memory utilisation is {self.utilisation:g}; it must be above 0 and at most 1"
            )
        given = self.kv_memory_bytes
        if given is None:
            return
        if given < 1:
            raise InputError("--kv-memory is 0 bytes; give what the engine has left for the cache")
        if self.gpu is not None and given > self.gpu.memory_bytes:
            raise InputError(
                f"--kv-memory is {given:,} bytes ({gib(given)}) and {self.gpu.title} has "
                f"{self.gpu.memory_bytes:,} ({gib(self.gpu.memory_bytes)}); give less or name "
                "another card"
            )


@dataclass(frozen=True, slots=True)
class VllmAsk:
    """A question for :func:`hybridplan.ledger.planning.vllm.plan`.

    ``max_num_seqs`` None: what vLLM would pick for the card. ``graphs`` False is
    ``--enforce-eager``. ``costs_at`` None: a ladder up to max_model_len.
    """

    spec: ModelSpec
    deployment: Deployment
    options: VllmOptions
    memory: MemoryAsk
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    graphs: bool = True
    costs_at: tuple[int, ...] = ()
    lengths: Lengths | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            raise RefusalError(
                f"max_num_batched_tokens is {tokens:,} and max_num_seqs {seqs:,}, and vLLM refuses "
                f"a step with less than a token a sequence; use --max-num-seqs {tokens} or less"
            )

    def resolved(self) -> VllmAsk:
        """The same question with the defaults vLLM would fill in for the card.

        Source: vLLM 0.33 ``EngineArgs._set_default_max_num_seqs_and_batched_tokens_args``; a
        multimodal prefix-LM model (Gemma) raises the step to its largest image, which is not known
        here.
        """
        defaults = memory.batch_defaults(self.memory.gpu)
        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if seqs is None:
            seqs = defaults.max_num_seqs
        if tokens is None:
            tokens = defaults.max_num_batched_tokens
            if self._longest:
                tokens = min(tokens, seqs * self._longest)
        if self.max_num_seqs is None:
            seqs = min(seqs, tokens)
        options = replace(self.options, max_num_batched_tokens=tokens)
        if self.memory.gpu is not None:
            options = _for_card(options, self.memory.gpu)
        return replace(
            self,
            options=options,
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
        )

    @property
    def _longest(self) -> int:
        asked = self.options.max_model_len
        return asked if asked is not None and asked > 0 else self.spec.max_tokens

    def budget(self) -> Memory:
        """Bytes for the cache on a rank; defaults must be resolved. A drafter counts for nothing.

        Raises RefusalError when the card holds none.
        """
        assert self.max_num_batched_tokens is not None
        assert self.max_num_seqs is not None
        spec = self.spec
        if self.options.draft_method != "mtp" or self.options.draft_layers is not None:
            spec = replace(spec, draft_layers=())
        return pool_memory(
            self.memory,
            spec,
            self.deployment,
            self.max_num_batched_tokens,
            self.max_num_seqs,
            graphs=self.graphs,
        )


def generation_of(gpu: Gpu) -> Generation | None:
    """What picks attention backends on a card; None for one that runs Triton's."""
    return _GENERATIONS.get(gpu.arch)


def _for_card(options: VllmOptions, gpu: Gpu) -> VllmOptions:
    generation = generation_of(gpu)
    if generation is not None:
        return replace(options, generation=generation)
    backend = options.attention_backend or "TRITON_ATTN"
    return replace(options, attention_backend=backend, gdn_prefill="triton")


def pool_memory(
    ask: MemoryAsk,
    spec: ModelSpec,
    deployment: Deployment,
    tokens: int,
    seqs: int,
    *,
    graphs: bool = True,
) -> Memory:
    """Bytes left for the cache on one rank as vLLM counts: all but the cache is taken off.

    ``graphs`` False: none are captured. Raises RefusalError when the card holds none.
    """
    if ask.kv_memory_bytes is not None:
        return _given(ask, ask.kv_memory_bytes)
    weights, activations, captured = _parts(ask, spec, deployment, tokens, seqs)
    context = memory.assumed("driver context", memory.CONTEXT_BYTES, "--kv-memory")
    parts = (weights, activations, *([captured] if graphs else []), context)
    return _left(ask, parts)


def static_memory(
    ask: MemoryAsk, spec: ModelSpec, deployment: Deployment, tokens: int, seqs: int
) -> Memory:
    """Bytes left for both pools on one rank as SGLang counts.

    ``mem-fraction-static`` of what was free before loading holds weights and pools; activations and
    graphs live in the rest, and only what that does not hold is taken off. Source: SGLang 0.5.23
    ``KVCacheConfigurator`` (``rest = free - pre x (1 - mem_fraction_static)``). Raises RefusalError
    when the card holds none.
    """
    if ask.kv_memory_bytes is not None:
        return _given(ask, ask.kv_memory_bytes)
    assert ask.gpu is not None
    weights, activations, captured = _parts(ask, spec, deployment, tokens, seqs)
    share = math.ceil(memory.CONTEXT_BYTES * ask.utilisation)
    parts = [weights, memory.assumed("driver context", share, "--kv-memory")]
    free = ask.gpu.memory_bytes - memory.CONTEXT_BYTES
    outside = free - math.ceil(free * ask.utilisation)
    beyond = int(activations.value) + int(captured.value) - outside
    if beyond > 0:
        flags = "--activation-memory and --graph-memory"
        parts.append(memory.assumed("activations and graphs outside the fraction", beyond, flags))
    return _left(ask, tuple(parts))


def outside_fraction(
    ask: MemoryAsk, spec: ModelSpec, deployment: Deployment, tokens: int, seqs: int
) -> tuple[Figure, Figure]:
    """What SGLang keeps outside ``mem-fraction-static``: activations and graphs of one rank."""
    _, activations, graphs = _parts(ask, spec, deployment, tokens, seqs)
    return activations, graphs


def _given(ask: MemoryAsk, size_bytes: int) -> Memory:
    return Memory(ask.gpu.name if ask.gpu else None, None, None, size_bytes, (), "exact")


def _parts(
    ask: MemoryAsk, spec: ModelSpec, deployment: Deployment, tokens: int, seqs: int
) -> tuple[Figure, Figure, Figure]:
    """Weights, activations and graphs: as the user said, else derived or assumed."""
    stated = memory.stated
    weights = (
        rank_weights(spec, deployment)
        if ask.weights_bytes is None
        else stated("weights", ask.weights_bytes, "--weights-memory")
    )
    activations = (
        memory.activation_bytes(spec, deployment.tp, tokens, seqs)
        if ask.activation_bytes is None
        else stated("activations", ask.activation_bytes, "--activation-memory")
    )
    graphs = (
        memory.assumed("graphs", memory.GRAPHS_BYTES, "--graph-memory")
        if ask.graph_bytes is None
        else stated("graphs", ask.graph_bytes, "--graph-memory")
    )
    return weights, activations, graphs


def _left(ask: MemoryAsk, parts: tuple[Figure, ...]) -> Memory:
    assert ask.gpu is not None
    got = memory.budget(ask.gpu, ask.utilisation, parts)
    return Memory(
        ask.gpu.name, got.total_bytes, got.usable_bytes, got.available_bytes, got.parts, "assumed"
    )
