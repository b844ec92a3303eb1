"""What a user asks of a plan, and the bytes it then works on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import InputError
from hybridplan.ledger import memory
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.figure import Figure
from hybridplan.ledger.gpu import Gpu
from hybridplan.ledger.lengths.distribution import Lengths
from hybridplan.ledger.planning.result import Memory
from hybridplan.ledger.planning.weights import rank_weights
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
        if self.kv_memory_bytes is not None and self.kv_memory_bytes < 1:
            raise InputError("--kv-memory is 0 bytes; give what the engine has left for the cache")


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

    def resolved(self) -> VllmAsk:
        """The same question with the defaults vLLM would fill in for the card."""
        defaults = memory.batch_defaults(self.memory.gpu)
        tokens = self.max_num_batched_tokens or defaults.max_num_batched_tokens
        options = replace(self.options, max_num_batched_tokens=tokens)
        if self.memory.gpu is not None:
            options = _for_card(options, self.memory.gpu)
        return replace(
            self,
            options=options,
            max_num_batched_tokens=tokens,
            max_num_seqs=self.max_num_seqs or defaults.max_num_seqs,
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
    ask: MemoryAsk, spec: ModelSpec, deployment: Deployment, tokens: int, seqs: int
) -> Memory:
    """Bytes left for the cache on one rank. Raises RefusalError when the card holds none."""
    if ask.kv_memory_bytes is not None:
        name = ask.gpu.name if ask.gpu else None
        return Memory(name, None, None, ask.kv_memory_bytes, (), "exact")
    assert ask.gpu is not None
    parts: list[Figure] = []
    if ask.weights_bytes is None:
        parts.append(rank_weights(spec, deployment))
    else:
        parts.append(memory.stated("weights", ask.weights_bytes, "--weights-memory"))
    if ask.activation_bytes is None:
        parts.append(memory.activation_bytes(spec, deployment.tp, tokens, seqs))
    else:
        parts.append(memory.stated("activations", ask.activation_bytes, "--activation-memory"))
    if ask.graph_bytes is None:
        parts.append(memory.assumed("graphs", memory.GRAPHS_BYTES, "--graph-memory"))
    else:
        parts.append(memory.stated("graphs", ask.graph_bytes, "--graph-memory"))
    parts.append(memory.assumed("driver context", memory.CONTEXT_BYTES, "--kv-memory"))
    got = memory.budget(ask.gpu, ask.utilisation, tuple(parts))
    return Memory(
        ask.gpu.name, got.total_bytes, got.usable_bytes, got.available_bytes, got.parts, "assumed"
    )
