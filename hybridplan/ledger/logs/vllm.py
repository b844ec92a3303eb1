"""A vLLM boot log against our plan: which configuration it is, and each line recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridplan.config.spec import ModelSpec
from hybridplan.ledger.logs.candidates import Candidate, rule_order, searches
from hybridplan.ledger.logs.capacity import Capacity, Solved, blocks_from_memory, solve
from hybridplan.ledger.logs.lines import Fact, Value
from hybridplan.ledger.logs.result import SCHEMA_VERSION, LineVerdict, LogReport, Setting
from hybridplan.ledger.vllm.pool import GIB, longest_that_fits

_NOTHING, _MEMORY_DISAGREES, _MEMORY_UNSAID, _MEMORY_AGREES = range(4)
_ALL_LINES = 2


@dataclass(frozen=True, slots=True)
class _Match:
    candidate: Candidate
    solved: Solved | None
    score: int


def stated_values(facts: Sequence[Fact]) -> dict[str, Value]:
    """Arguments the log shows, later lines last."""
    values: dict[str, Value] = {}
    for fact in facts:
        if fact.kind == "arguments":
            values.update(fact.values)
    return values


def version_of(facts: Sequence[Fact]) -> str:
    """The version the log names, or nothing."""
    return next((str(f.values["version"]) for f in facts if "version" in f.values), "")


def logged_capacity(facts: Sequence[Fact]) -> Capacity:
    """The capacity figures of the log, whichever lines they stand in."""
    found: dict[str, Value] = {}
    for fact in facts:
        if fact.kind in ("capacity", "kv_tokens", "concurrency", "mamba_blocks", "gpu_blocks"):
            found.update(fact.values)
        elif fact.kind == "override":
            found["num_blocks"] = fact.values["override_blocks"]
        elif fact.kind == "available":
            found["available_gib"] = fact.values["available_gib"]
        elif fact.kind == "too_small":
            found["max_model_len"] = fact.values["max_model_len"]
            found["needed_gib"] = fact.values["needed_gib"]
            found["short_gib"] = fact.values["available_gib"]
    return Capacity(
        _int(found.get("kv_tokens")),
        _float(found.get("concurrency")),
        _int(found.get("max_model_len")),
        _int(found.get("num_blocks")),
        _float(found.get("available_gib")),
        _float(found.get("needed_gib")),
        _float(found.get("short_gib")),
    )


def _int(value: Value | None) -> int | None:
    return None if value is None else int(value)


def _float(value: Value | None) -> float | None:
    return None if value is None else float(value)


def explain(
    facts: Sequence[Fact], name: str, spec: ModelSpec | None, said: str, given: dict[str, Value]
) -> LogReport:
    """Explain a vLLM log. ``given`` are settings the user states, which win over the log's."""
    stated = {**stated_values(facts), **given}
    version = version_of(facts)
    capacity = logged_capacity(facts)
    if capacity.max_model_len is None:
        capacity = replace(capacity, max_model_len=_int(stated.get("max_model_len")))
    best, alternatives = _best(facts, spec, stated, version, capacity)
    lines = tuple(_line(fact, best, capacity) for fact in facts if fact.kind in _MEANINGS)
    notes = [said] if said else []
    if best is not None and best.solved is not None and best.solved.meaning == "old":
        true_tokens = int(
            best.solved.num_blocks
            / best.candidate.blocks_per_request
            * best.candidate.pool.limits.max_model_len
        )
        notes.append(
            "the logged token count has its old meaning (blocks over groups times the block); "
            f"requests of full length can hold {true_tokens:,} tokens at once"
        )
    if best is not None and best.candidate.rules == "older":
        notes.append(
            "rules older: what releases before 0.32 logged (no states exported inside a prefill, "
            "no alignment to them), learnt from logs and not read from their code"
        )
    if alternatives:
        notes.append(
            f"{alternatives} other configurations would log the same lines; the most ordinary one "
            "is shown, and stating more flags narrows it"
        )
    if spec is not None and (best is None or best.score == _NOTHING):
        notes.append(
            f"no configuration tried for {spec.name} logs all these lines, and the closest is "
            "shown; a drafter, a fork or another KV format may be at work: state what differs "
            "with --tp, --kv-dtype, --drafts"
        )
    return LogReport(
        schema_version=SCHEMA_VERSION,
        name=name,
        engine="vllm",
        version=version,
        model=spec.name if spec else None,
        settings=_settings(best, stated),
        lines=lines,
        num_blocks=best.solved.num_blocks if best and best.solved else capacity.num_blocks,
        blocks_per_request=best.candidate.blocks_per_request if best else None,
        slots=None,
        alternatives=alternatives,
        notes=tuple(notes),
    )


def _best(
    facts: Sequence[Fact],
    spec: ModelSpec | None,
    stated: dict[str, Value],
    version: str,
    capacity: Capacity,
) -> tuple[_Match | None, int]:
    if spec is None:
        return None, 0
    block = next((_int(f.values["block_tokens"]) for f in facts if f.kind == "block_size"), None)
    padding = next((f.values["padding_pct"] for f in facts if f.kind == "padding"), None)
    two_lines = any(fact.kind == "kv_tokens" for fact in facts)
    rules = rule_order(version, two_lines=two_lines)
    matches: list[_Match] = []
    closest: tuple[int, Candidate] | None = None
    for round_ in searches(spec, stated, rules, capacity.max_model_len):
        for candidate in round_:
            shared = _shared_lines(candidate, block, padding)
            match = _solve(candidate, capacity) if shared == _ALL_LINES else None
            if match is not None:
                matches.append(match)
            elif closest is None or shared > closest[0]:
                closest = (shared, candidate)
        if any(match.score >= _MEMORY_UNSAID for match in matches):
            break
    if not matches:
        return (None, 0) if closest is None else (_Match(closest[1], None, _NOTHING), 0)
    top = max(match.score for match in matches)
    ties = [match for match in matches if match.score == top]
    return ties[0], len(ties) - 1


def _shared_lines(candidate: Candidate, block: int | None, padding: Value | None) -> int:
    """How many of the two alignment lines the candidate would log alike (unlogged ones count)."""
    same_block = block is None or candidate.pool.block_tokens == block
    same_padding = padding is None or candidate.padding_percent == f"{float(padding):.2f}"
    return same_block + same_padding


def _solve(candidate: Candidate, capacity: Capacity) -> _Match | None:
    """The blocks that give the logged capacity; a log without one matches every candidate."""
    silent = capacity.kv_tokens is None and capacity.concurrency is None
    if silent and capacity.num_blocks is None:
        if capacity.needed_gib is None or candidate.rules not in _CHECKS_GROUPS:
            return _Match(candidate, None, _MEMORY_UNSAID)
        same = f"{_needed_gib(candidate):.2f}" == f"{capacity.needed_gib:.2f}"
        return _Match(candidate, None, _MEMORY_AGREES) if same else None
    pool = candidate.pool
    solved = solve(
        capacity,
        groups=len(pool.groups),
        block_tokens=pool.block_tokens,
        per_request=candidate.blocks_per_request,
        bytes_per_block=pool.bytes_per_block,
    )
    if solved is None:
        return None
    if solved.agrees_with_memory is False:
        return _Match(candidate, solved, _MEMORY_DISAGREES)
    agrees = solved.agrees_with_memory is True
    return _Match(candidate, solved, _MEMORY_AGREES if agrees else _MEMORY_UNSAID)


def _settings(best: _Match | None, stated: dict[str, Value]) -> tuple[Setting, ...]:
    settings = [Setting(name, str(value), "stated") for name, value in sorted(stated.items())]
    if best is None:
        return tuple(settings)
    found = best.candidate
    shown = {
        "rules": found.rules,
        "tp": str(found.tp),
        "kv_dtype": found.kv_dtype or "auto",
        "state_dtype": found.state_dtype or "auto",
        "drafts": str(found.drafts),
        "prefix_caching": str(found.prefix_caching),
    }
    if found.rules == "0.33" and found.pool.gdn_kernel is not None:
        shown["gdn_prefill"] = found.gdn_prefill
    for name, value in shown.items():
        if name in stated and str(stated[name]) not in ("auto", "None"):
            continue
        ordinary = value in ("auto", "0")
        settings.append(Setting(name, value, "default" if ordinary else "inferred"))
    return tuple(settings)


_MEANINGS = {
    "block_size": (
        "tokens of one block: an attention page of one layer must hold one state",
        "rule R1: granularity x ceil(state / (granularity x bytes per token))",
        "--kv-cache-dtype, --mamba-ssm-cache-dtype, -tp, number of draft tokens, --block-size",
    ),
    "padding": (
        "bytes added to each state to fill its page",
        "page / state - 1",
        "as the block size; a --block-size of finer granularity pads less",
    ),
    "weights": ("what loading the weights took on this rank", "", "quantisation, -tp"),
    "available": (
        "memory left for KV and states on this rank",
        "total x utilisation - weights - activations - graphs",
        "--gpu-memory-utilization, --max-num-batched-tokens, --max-num-seqs",
    ),
    "capacity": (
        "tokens of requests of max_model_len that run at once, and how many such requests",
        "new: int(blocks / blocks per request x max_model_len)",
        "--max-model-len, --kv-cache-dtype, memory",
    ),
    "kv_tokens": (
        "size of the pool in tokens, in the meaning of the version",
        "old: blocks // groups x block; new: int(blocks / blocks per request x max_model_len)",
        "memory, --kv-cache-dtype; --max-model-len in the new meaning",
    ),
    "concurrency": (
        "requests of max_model_len that fit at once",
        "blocks / blocks per request",
        "--max-model-len, memory",
    ),
    "padding_layers": (
        "empty layer slots, because groups must have one size",
        "group size x groups - layers",
        "drafters and MTP layers change the groups",
    ),
    "mamba_blocks": (
        "blocks of the pool; each running sequence needs a state block for the decode graphs",
        "available / bytes per block",
        "--max-num-seqs at most this number, or more memory",
    ),
    "too_small": (
        "one request of max_model_len does not fit",
        "blocks per request x bytes per block > available",
        "--max-model-len, memory",
    ),
    "estimated_length": (
        "the longest request that would fit",
        "binary search over the same sum",
        "--max-model-len to this value",
    ),
    "override": ("blocks were set by hand", "", "--num-gpu-blocks-override"),
    "gpu_blocks": ("blocks of the pool", "available / bytes per block", "memory"),
    "backend": ("the attention backend, which fixes kernel blocks", "", "--attention-backend"),
    "budget_guard": (
        "align mode of this release needs a block no larger than a step's token budget",
        "block <= max_num_batched_tokens",
        "--max-num-batched-tokens at least the block",
    ),
}


# Rules whose fit check sums the groups' blocks; what earlier releases summed is not known.
_CHECKS_GROUPS = ("0.32", "0.33")


def _needed_gib(candidate: Candidate) -> float:
    """What one request of the longest length takes of the pool."""
    return candidate.blocks_per_request * candidate.pool.bytes_per_block / GIB


_CAPACITY_LINES = ("capacity", "kv_tokens", "concurrency")


def _line(fact: Fact, best: _Match | None, capacity: Capacity) -> LineVerdict:
    meaning, formula, moved_by = _MEANINGS[fact.kind]
    ours, agrees = _recomputed(fact, best, capacity)
    if best is not None and best.solved is not None and fact.kind in ("kv_tokens", "capacity"):
        formula = (
            next(part for part in formula.split("; ") if part.startswith(best.solved.meaning))
            if ";" in formula
            else formula
        )
    return LineVerdict(
        fact.line_number, fact.kind, fact.text, meaning, ours, agrees, formula, moved_by
    )


def _recomputed(
    fact: Fact, best: _Match | None, capacity: Capacity
) -> tuple[str | None, bool | None]:
    if best is None:
        return None, None
    pool, solved = best.candidate.pool, best.solved
    if fact.kind == "block_size":
        return f"{pool.block_tokens:,} tokens", pool.block_tokens == fact.values["block_tokens"]
    if fact.kind == "padding":
        ours = best.candidate.padding_percent
        return f"{ours}%", ours == f"{float(fact.values['padding_pct']):.2f}"
    if fact.kind == "padding_layers":
        padded = sorted({group.padding_layers for group in pool.groups} - {0})
        said = " or ".join(map(str, padded)) or "no"
        return f"{said} empty layer slots in a group", fact.values["padding_layers"] in padded
    if fact.kind == "too_small" and best.candidate.rules in _CHECKS_GROUPS:
        needed = _needed_gib(best.candidate)
        return (
            f"{best.candidate.blocks_per_request:,} blocks of {pool.bytes_per_block:,} B are "
            f"{needed:.2f} GiB"
        ), f"{needed:.2f}" == f"{float(fact.values['needed_gib']):.2f}"
    if fact.kind == "estimated_length" and capacity.short_gib is not None:
        return _estimated(fact, best.candidate, capacity.short_gib)
    if fact.kind == "available" and solved is not None:
        low, high = blocks_from_memory(float(fact.values["available_gib"]), pool.bytes_per_block)
        said = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"{said} blocks of {pool.bytes_per_block:,} B; the capacity implies "
            f"{solved.num_blocks:,}"
        ), solved.agrees_with_memory
    if solved is None and best.score == _NOTHING and fact.kind in _CAPACITY_LINES:
        per_request = best.candidate.blocks_per_request
        return f"no number of blocks over {per_request:,} a request gives these figures", False
    if solved is None:
        return None, None
    blocks, per_request = solved.num_blocks, best.candidate.blocks_per_request
    ratio = blocks / per_request
    if fact.kind in _CAPACITY_LINES:
        return _capacity_words(fact, best, solved, ratio)
    if fact.kind in ("mamba_blocks", "gpu_blocks"):
        return f"{blocks:,} blocks", blocks == fact.values["num_blocks"]
    return None, None


def _estimated(
    fact: Fact, candidate: Candidate, short_gib: float
) -> tuple[str | None, bool | None]:
    """The longest length in the memory that was left, which is printed to two decimals."""
    if candidate.rules not in _CHECKS_GROUPS:
        return None, None
    pool = candidate.pool
    least, most = (
        longest_that_fits(pool.groups, pool.limits, blocks, pool.limits.max_model_len)
        for blocks in blocks_from_memory(short_gib, pool.bytes_per_block)
    )
    said = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{said} tokens", least <= int(fact.values["estimated_max_len"]) <= most


def _capacity_words(fact: Fact, best: _Match, solved: Solved, ratio: float) -> tuple[str, bool]:
    pool = best.candidate.pool
    length = pool.limits.max_model_len
    tokens = (
        int(ratio * length)
        if solved.meaning == "new"
        else solved.num_blocks // len(pool.groups) * pool.block_tokens
    )
    words = f"{solved.num_blocks:,} blocks / {best.candidate.blocks_per_request:,} = {ratio:.2f}x"
    agrees = True
    if "concurrency" in fact.values:
        agrees = f"{float(fact.values['concurrency']):.2f}" == f"{ratio:.2f}"
    if "kv_tokens" in fact.values:
        words += f"; {tokens:,} tokens"
        agrees = agrees and tokens == fact.values["kv_tokens"]
    size_gib = solved.num_blocks * pool.bytes_per_block / GIB
    return f"{words}; {size_gib:,.2f} GiB", agrees
