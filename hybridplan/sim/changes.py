"""Changes of vLLM's flags that answer a loss, and when each is worth a re-run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm

from hybridplan.ledger.size import gib
from hybridplan.sim.outcome import LossCause, Summary
from hybridplan.sim.result import Setup
from hybridplan.sim.setup import EngineAsk, VllmFlags

_STATE_LOST = (
    LossCause.NO_CHUNK_END,
    LossCause.NOT_RETAINED,
    LossCause.DECODE_STATE,
    LossCause.OVERWRITTEN,
    LossCause.OUT_OF_WINDOW,
)
_EDGES = (LossCause.BELOW_ONE_BLOCK, LossCause.FORK_INSIDE_BLOCK)
_POOL = {"memory", "kv-dtype"}
_FINE_UNITS = (64, 16)
_LEAST_UNIT = 16
_SOME = 50
"""A loss below 1/50 of all is not worth a re-run."""


@dataclass(frozen=True, slots=True)
class Change:
    """Flags as the engine's server spells them, and the same done to a question.

    ``topic`` tells changes apart that replace one another. ``needs_whole``: only the whole trace
    shows what it is worth, because a pool fills slowly. ``costly`` is left out where that is long.
    """

    topic: str
    flags: tuple[str, ...]
    why: str
    price: str
    apply: Callable[[EngineAsk], EngineAsk]
    needs_whole: bool = False
    costly: bool = False


def combined(first: Change, second: Change) -> Change | None:
    """Both changes at once; None where they are about the same flag or both about the pool."""
    if first.topic == second.topic or {first.topic, second.topic} <= _POOL:
        return None
    return Change(
        topic=f"{first.topic}+{second.topic}",
        flags=first.flags + tuple(flag for flag in second.flags if flag not in first.flags),
        why="both together",
        price="; ".join(dict.fromkeys(price for price in (first.price, second.price) if price)),
        apply=lambda ask: second.apply(first.apply(ask)),
        needs_whole=first.needs_whole or second.needs_whole,
    )


def flag_change(**changes: object) -> Callable[[EngineAsk], EngineAsk]:
    """An ``apply`` that sets fields of the engine's flags."""
    return lambda ask: replace(ask, flags=replace(ask.flags, **changes))  # type: ignore[arg-type]


def option_change(**changes: object) -> Callable[[EngineAsk], EngineAsk]:
    """An ``apply`` that sets fields of the engine's options."""

    def apply(ask: EngineAsk) -> EngineAsk:
        options = replace(ask.flags.options, **changes)  # type: ignore[arg-type]
        return replace(ask, flags=replace(ask.flags, options=options))  # type: ignore[arg-type]

    return apply


def deployment_change(**changes: object) -> Callable[[EngineAsk], EngineAsk]:
    """An ``apply`` that sets fields of the deployment."""
    return lambda ask: replace(ask, deployment=replace(ask.deployment, **changes))  # type: ignore[arg-type]


def lost_to(summary: Summary, causes: tuple[LossCause, ...]) -> bool:
    """Whether these causes took a share of the loss that is worth looking into."""
    tokens = sum(tokens for cause, tokens in summary.lost if cause in causes)
    return tokens * _SOME > summary.lost_tokens


def vllm_changes(ask: EngineAsk, setup: Setup, summary: Summary, tells_units: bool) -> list[Change]:
    """What to re-run for these losses, most promising first.

    Unless ``tells_units``, changes of the block or the unit are left out: with coarse prefix ids
    they would be compared by how well their edges fall on the trace's, not by what they hit.
    """
    flags = ask.flags
    assert isinstance(flags, VllmFlags)
    if lost_to(summary, (LossCause.OUTSIDE_CACHE,)):
        on = option_change(prefix_caching=True)
        return [Change("caching", ("--enable-prefix-caching",), "prefix caching is off", "", on)]
    found: list[Change] = []
    evicts = bool(summary.use.evictions) and lost_to(
        summary, (LossCause.EVICTED, LossCause.PREEMPTED)
    )
    if lost_to(summary, (LossCause.DRAFT_DROP,)) and ask.deployment.drafts:
        found += _drafts(setup, flags)
    if lost_to(summary, (*_STATE_LOST, *_EDGES)) and setup.policy == "engine":
        if any(group.kind.startswith("mamba") for group in setup.groups) or lost_to(
            summary, (LossCause.OUT_OF_WINDOW, LossCause.NOT_RETAINED)
        ):
            found += _retention(setup, flags, evicts)
        if setup.has_states and tells_units:
            found += _units(setup)
    # A pool given in blocks would shrink with them.
    if lost_to(summary, _EDGES) and tells_units and not (evicts and flags.num_blocks):
        found += _smaller_blocks(ask, setup, flags)
    if evicts:
        found += _memory(ask, setup)
        found += _fewer_seqs(summary)
    return found


def _drafts(setup: Setup, flags: VllmFlags) -> list[Change]:
    found = []
    if setup.has_states and not flags.shared_prefix_checkpoint:
        found.append(
            Change(
                "shared",
                ("--enable-mamba-shared-prefix-checkpoint",),
                "a state is kept where prompts part, even with a draft model",
                "",
                flag_change(shared_prefix_checkpoint=True),
            )
        )
    found.append(
        Change(
            "drafts",
            ("--drafts 0",),
            "without --speculative-config no matched block is dropped",
            "no speculation",
            lambda ask: deployment_change(drafts=0)(flag_change(accepted_drafts=(0,))(ask)),
        )
    )
    return found


def _retention(setup: Setup, flags: VllmFlags, evicts: bool) -> list[Change]:
    found = []
    block, budget = _scheduler_block(setup), int(setup.settings["max_num_batched_tokens"] or 0)
    keep_all = ("--prefix-cache-retention-interval None",)
    if flags.retention_interval is not None:
        found.append(
            Change(
                "retention",
                keep_all,
                "every chunk end keeps its state, not only prompt ends and forks",
                "more blocks hold states",
                flag_change(retention_interval=None),
                evicts,
                evicts,
            )
        )
        if evicts:
            found.append(
                Change(
                    "retention",
                    (f"--prefix-cache-retention-interval {4 * block}",),
                    f"a state is kept every {4 * block:,} tokens",
                    "more blocks hold states",
                    flag_change(retention_interval=4 * block),
                    evicts,
                    evicts,
                )
            )
    if setup.has_states and 2 * block < budget:
        found.append(
            Change(
                "retention",
                (*keep_all, f"--max-num-batched-tokens {2 * block}"),
                f"chunks end, and keep a state, every {2 * block:,} tokens",
                "smaller prefill steps, more blocks hold states",
                flag_change(retention_interval=None, max_num_batched_tokens=2 * block),
                evicts,
                evicts,
            )
        )
    return found


def _units(setup: Setup) -> list[Change]:
    found: dict[int, Change] = {}
    blocks = [group.block_tokens for group in setup.groups if group.kind != "ring"]
    for wanted in _FINE_UNITS:
        fits = [
            size
            for size in range(_LEAST_UNIT, wanted + 1, _LEAST_UNIT)
            if all(block % size == 0 for block in blocks)
        ]
        if not fits or fits[-1] >= setup.hit_alignment_tokens:
            continue
        unit = fits[-1]
        found[unit] = Change(
            "unit",
            (f"--prefix-match-unit {unit}",),
            f"hits may end on multiples of {unit} tokens, not {setup.hit_alignment_tokens:,}",
            "more hashes, partial blocks are copied",
            option_change(prefix_match_unit=unit),
        )
    return list(found.values())


def _smaller_blocks(ask: EngineAsk, setup: Setup, flags: VllmFlags) -> list[Change]:
    found = []
    if flags.options.block_tokens is not None:
        found.append(
            Change(
                "block",
                ("(no --block-size)",),
                "the engine's own block is smaller",
                "",
                option_change(block_tokens=None),
            )
        )
    if setup.has_states and ask.deployment.state_dtype is None:
        found.append(
            Change(
                "state-dtype",
                ("--mamba-ssm-cache-dtype bfloat16",),
                "a smaller state fits a smaller block",
                "states lose precision",
                deployment_change(state_dtype="bfloat16"),
            )
        )
    return found


def _memory(ask: EngineAsk, setup: Setup) -> list[Change]:
    if setup.memory is None:
        blocks = setup.num_blocks or 0
        more = gib(blocks * setup.bytes_per_block)
        apply = flag_change(num_blocks=2 * blocks)
        return [_twice(f"--num-gpu-blocks-override {2 * blocks}", more, apply)]
    available_bytes = setup.memory.available_bytes
    spelled = f"vLLM: --kv-cache-memory-bytes {2 * available_bytes >> 20}M"
    found = [twice_the_memory(available_bytes, spelled)]
    if ask.deployment.kv_dtype is None:
        found.append(
            Change(
                "kv-dtype",
                ("--kv-cache-dtype fp8",),
                "the same memory holds more tokens, in other blocks",
                "KV loses precision",
                deployment_change(kv_dtype="fp8"),
                needs_whole=True,
            )
        )
    return found


def twice_the_memory(size_bytes: int, spelled: str = "") -> Change:
    """Twice the bytes that are left for the cache now, in whole MiB; ``spelled`` is the engine's
    flag for that."""
    twice = 2 * size_bytes >> 20

    def apply(ask: EngineAsk) -> EngineAsk:
        memory = replace(ask.memory, kv_memory_bytes=twice << 20) if ask.memory else None
        return replace(ask, memory=memory)

    change = _twice(f"--kv-memory {twice}MiB", gib(size_bytes), apply)
    return replace(change, why=f"{change.why} ({spelled})") if spelled else change


def _twice(flag: str, more: str, apply: Callable[[EngineAsk], EngineAsk]) -> Change:
    return Change(
        "memory", (flag,), "twice the pool evicts later", f"{more} more a rank", apply, True
    )


def _fewer_seqs(summary: Summary) -> list[Change]:
    if not summary.preemptions or summary.peak_running < 2:
        return []
    seqs = summary.peak_running // 2
    return [
        Change(
            "seqs",
            (f"--max-num-seqs {seqs}",),
            "fewer requests at once leave blocks to the cache and are not preempted",
            "requests wait longer",
            flag_change(max_num_seqs=seqs),
            needs_whole=True,
        )
    ]


def _scheduler_block(setup: Setup) -> int:
    return lcm(*(group.block_tokens for group in setup.groups))
