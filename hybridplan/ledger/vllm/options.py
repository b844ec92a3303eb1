"""vLLM's own switches that decide pages, blocks and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hybridplan.config.spec import Layer
from hybridplan.errors import InputError

Generation: TypeAlias = Literal["sm80", "sm89", "sm90", "sm100", "sm120"]
GENERATIONS: tuple[Generation, ...] = ("sm80", "sm89", "sm90", "sm100", "sm120")
DraftMethod: TypeAlias = Literal[
    "mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", "ngram"
]
DRAFT_METHODS: tuple[DraftMethod, ...] = get_args(DraftMethod)
AUTO_FIT = -1
DEFAULT_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Engine arguments beside those of the Deployment, by the engine's names plus a unit.

    ``generation`` picks attention backends ("sm89" is Ada, "sm100" all of SM 10.x, "sm120" SM
    12.x). ``max_model_len``: None is the model's own, -1 lets vLLM shorten it until it fits.
    ``max_num_batched_tokens`` None is the library's default of 2048 (``vllm serve`` picks more on
    large GPUs). ``max_num_seqs`` None is not checked against the pool. ``model_runner_v2`` False
    is ``VLLM_USE_V2_MODEL_RUNNER=0``. ``prefix_caching`` None: vLLM's default for the model.
    ``block_tokens`` is ``--block-size``. ``attention_backend`` names one of
    ``backends.BACKENDS`` for every attention layer that can take it;
    ``kernel_block_tokens`` overrides its smallest block. ``gdn_prefill`` as
    ``--gdn-prefill-backend``. ``draft_layers``: the drafter's layers where the checkpoint carries
    none (EAGLE, DFlash), ``draft_method`` what kind it is. ``replayssm_tokens`` is the length of
    the ReplaySSM ring, 0 without it; ``replayssm_flashinfer`` its FlashInfer backend.
    ``available_bytes_per_rank``: one value per pipeline rank where they differ.
    ``group_layers`` sets the width of groups of equal pages (a proposal, vllm#49472) instead of the
    engine's rule. ``state_chunk_tokens`` > 0 is ``mamba_cache_mode="all"`` of releases before 0.32
    with that kernel chunk: a state at every block, and blocks are whole chunks.
    """

    generation: Generation = "sm90"
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    async_scheduling: bool = True
    model_runner_v2: bool = True
    prefix_caching: bool | None = None
    prefix_match_unit: int | None = None
    block_tokens: int | None = None
    layout: str | None = None
    attention_backend: str | None = None
    kernel_block_tokens: int | None = None
    gdn_prefill: Literal["auto", "flashinfer", "triton"] = "auto"
    draft_method: DraftMethod = "mtp"
    draft_layers: tuple[Layer, ...] | None = None
    block_drop: bool = True
    lookahead_hashes: bool = True
    hybrid_manager: bool = True
    replayssm_tokens: int = 0
    replayssm_flashinfer: bool = False
    num_gpu_blocks_override: int | None = None
    available_bytes_per_rank: tuple[int, ...] = ()
    group_layers: int | None = None
    state_chunk_tokens: int = 0

    def __post_init__(self) -> None:
        if self.generation not in GENERATIONS:
            raise InputError(
                f"GPU generation {self.generation!r} is not known; known are "
                f"{', '.join(GENERATIONS)}"
            )
        if self.draft_method not in DRAFT_METHODS:
            raise InputError(
                f"draft method {self.draft_method!r} is not known; known are "
                f"{', '.join(DRAFT_METHODS)}"
            )
        length = self.max_model_len
        if length is not None and length < 1 and length != AUTO_FIT:
            raise InputError(f"max_model_len is {length}; give 1 or more, or -1 to fit")
        positive = {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "block_tokens": self.block_tokens,
            "prefix_match_unit": self.prefix_match_unit,
            "kernel_block_tokens": self.kernel_block_tokens,
            "num_gpu_blocks_override": self.num_gpu_blocks_override,
            "group_layers": self.group_layers,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")
        if self.state_chunk_tokens < 0:
            raise InputError(f"state_chunk_tokens is {self.state_chunk_tokens}; 0 is the least")
        if self.replayssm_tokens < 0:
            raise InputError(f"replayssm_tokens is {self.replayssm_tokens}; it must be 0 or more")

    @property
    def batched_tokens(self) -> int:
        """Token budget of a step."""
        return self.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
