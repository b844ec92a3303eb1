"""Configurations a vLLM log could come from, most ordinary first, and how each would log.

What the log or the user states is fixed; the rest is searched. A figure that several
configurations give alike is reported with the number of alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.logs.lines import Value
from hybridplan.ledger.vllm.options import GENERATIONS, Generation, VllmOptions
from hybridplan.ledger.vllm.plan import PoolPlan, plan_vllm

MOST_DRAFTS = 8
_AMPLE_BYTES = 1 << 46
_GENERATION: Generation = "sm90"
_GDN_KERNELS: dict[str, tuple[Literal["auto", "triton"], ...]] = {
    "0.33": ("auto", "triton"),
    "0.32": ("auto",),
    "older": ("triton",),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration, and the pool it gives with ample memory (blocks are solved apart)."""

    rules: str
    tp: int
    kv_dtype: str | None
    state_dtype: str | None
    drafts: int
    prefix_caching: bool
    gdn_prefill: str
    pool: PoolPlan

    @property
    def blocks_per_request(self) -> int:
        return sum(self.pool.blocks_per_request)

    @property
    def padding_percent(self) -> str | None:
        """As the log prints it; None when nothing is padded."""
        found = self.pool.alignment
        if found is None or found.state_page_bytes is None:
            return None
        return f"{found.padding_percent:.2f}"


def rule_order(version: str, *, two_lines: bool = False) -> tuple[str, ...]:
    """Rule sets to try for a logged version, likeliest first.

    ``two_lines``: tokens and concurrency stand in lines of their own, as releases before 0.30 did.
    A version that counts commits only ("0.1.dev20073") leaves all of them open.
    """
    numbers = [part for part in version.split("+")[0].split(".")[:2] if part.isdigit()]
    if len(numbers) == 2 and numbers[0] == "0" and version.count(".") >= 1:
        minor = int(numbers[1])
        if minor >= 33:
            return ("0.33",)
        if minor == 32:
            return ("0.32", "0.33")
        if minor > 1:
            return ("older", "0.32")
    return ("older", "0.32", "0.33") if two_lines else ("0.33", "0.32", "older")


def _one_or(value: Value | None, others: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    return others if value is None else (value,)


_SEARCHES: tuple[dict[str, tuple[Value | None, ...]], ...] = (
    {"drafts": (0,), "kv_dtype": (None,), "state_dtype": (None,)},
    {"drafts": (0,), "kv_dtype": (None, "fp8"), "state_dtype": (None, "bfloat16")},
    {"drafts": tuple(range(1, MOST_DRAFTS)), "kv_dtype": (None, "fp8"), "state_dtype": (None,)},
    {
        "drafts": tuple(range(MOST_DRAFTS)),
        "kv_dtype": (None, "fp8", "int8_per_token_head"),
        "state_dtype": (None, "bfloat16"),
    },
)


def searches(
    spec: ModelSpec,
    stated: dict[str, Value],
    rules: tuple[str, ...],
    max_model_len: int | None,
) -> Iterator[Iterator[Candidate]]:
    """Rounds of candidates, each looking further from the ordinary than the one before.

    ``stated`` settings are fixed in every round; ``rules`` are tried in order.
    """
    tried: set[tuple[Value | None, ...]] = set()
    for search in _SEARCHES:
        drafts = (stated["drafts"],) if "drafts" in stated else search["drafts"]
        state_dtypes = _one_or(_plain(stated, "state_dtype"), search["state_dtype"])
        kv_dtypes = _one_or(_plain(stated, "kv_dtype"), search["kv_dtype"])
        grid = [point for point in product(drafts, state_dtypes, kv_dtypes) if point not in tried]
        tried.update(grid)
        yield _candidates(spec, stated, rules, max_model_len, grid)


def _candidates(
    spec: ModelSpec,
    stated: dict[str, Value],
    rules: tuple[str, ...],
    max_model_len: int | None,
    grid: Sequence[tuple[Value | None, ...]],
) -> Iterator[Candidate]:
    caching: tuple[bool, ...] = (True, False)
    if "prefix_caching" in stated:
        caching = (stated["prefix_caching"] == "True",)
    tps = (int(stated["tp"]),) if "tp" in stated else (1, 2, 4, 8)
    length = max_model_len if max_model_len is not None else stated.get("max_model_len")
    block, smallest = stated.get("block_size"), stated.get("kernel_block_tokens")
    named = stated.get("generation")
    generation = next((one for one in GENERATIONS if one == named), _GENERATION)
    gdn = any(mixer.kind == "gdn" for layer in spec.layers for mixer in layer.mixers)
    kernels = [(rule, kernel) for rule in rules for kernel in _GDN_KERNELS[rule][: 2 if gdn else 1]]
    for (draft, state, kv), tp, cached, (rule, kernel) in product(grid, tps, caching, kernels):
        if kernel != _GDN_KERNELS[rule][0] and not cached:
            continue  # without prefix caching the kernel decides nothing
        try:
            deployment = Deployment(
                "vllm",
                rule,
                tp=tp,
                pp=int(stated.get("pp", 1)),
                kv_dtype=None if kv is None else str(kv),
                state_dtype=None if state is None else str(state),
                drafts=int(draft or 0),
            )
            options = VllmOptions(
                generation=generation,
                kernel_block_tokens=None if smallest is None else int(smallest),
                max_model_len=None if length is None else int(length),
                prefix_caching=cached,
                gdn_prefill=kernel,
                block_tokens=None if block is None else int(block),
            )
            pool = plan_vllm(spec, deployment, options, _AMPLE_BYTES)
        except HybridplanError:
            continue
        yield Candidate(
            rule,
            tp,
            deployment.kv_dtype,
            deployment.state_dtype,
            deployment.drafts,
            cached,
            kernel,
            pool,
        )


def _plain(stated: dict[str, Value], name: str) -> Value | None:
    value = stated.get(name)
    return None if value in (None, "auto", "None") else value
