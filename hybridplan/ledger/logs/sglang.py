"""An SGLang boot log against our plan: slots, KV tokens and the clamp on running requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hybridplan.config.spec import ModelSpec
from hybridplan.errors import HybridplanError
from hybridplan.ledger.caches import draft_caches, model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.logs.lines import Fact, Value
from hybridplan.ledger.logs.result import SCHEMA_VERSION, LineVerdict, LogReport, Setting
from hybridplan.ledger.sglang.plan import kv_bytes_per_token, slot_bytes

GIB = 1024**3
_RESERVED = {5: "extra_buffer", 4: "extra_buffer_lazy", 3: "no_buffer", 1: "no radix cache"}


@dataclass(frozen=True, slots=True)
class _Shape:
    """Bytes of one slot and one token under one guess of what the log does not say."""

    tp: int
    kv_dtype: str | None
    state_dtype: str | None
    draft_layers: bool
    state_bytes: int
    conv_bytes: int
    token_bytes: int


def explain(
    facts: Sequence[Fact], name: str, spec: ModelSpec | None, said: str, given: dict[str, Value]
) -> LogReport:
    """Explain an SGLang log. ``given`` are settings the user states, which win over the log's."""
    stated: dict[str, Value] = {}
    for fact in facts:
        if fact.kind == "arguments":
            stated.update(fact.values)
    stated.update(given)
    tried = _shapes(spec, stated)
    shapes = [shape for shape in tried if _fits(shape, facts)]
    shape = next(iter(shapes or tried), None)
    slots = next((int(f.values["slots"]) for f in facts if f.kind == "state_pool"), None)
    lines = tuple(_line(fact, shape, slots, stated) for fact in facts if fact.kind in _MEANINGS)
    notes = [said] if said else []
    if spec is not None and not shapes:
        notes.append(
            f"no dtypes or tensor parallel size tried for {spec.name} give these pools, and the "
            "plainest is shown; state what differs with --tp, --kv-dtype, --state-dtype"
        )
    if shape is not None and slots is not None and shape.token_bytes:
        worth = (shape.state_bytes + shape.conv_bytes) / shape.token_bytes
        notes.append(f"one state slot costs as much as {worth:,.1f} KV tokens")
    return LogReport(
        schema_version=SCHEMA_VERSION,
        name=name,
        engine="sglang",
        version="",
        model=spec.name if spec else None,
        settings=_settings(shape, stated),
        lines=lines,
        num_blocks=None,
        blocks_per_request=None,
        slots=slots,
        alternatives=max(0, len(shapes) - 1),
        notes=tuple(notes),
    )


def _shapes(spec: ModelSpec | None, stated: dict[str, Value]) -> list[_Shape]:
    if spec is None:
        return []
    tps = (int(stated["tp"]),) if "tp" in stated else (1, 2, 4, 8)
    kv = stated.get("kv_dtype")
    kv_dtypes = (None, "fp8") if kv in (None, "auto") else (str(kv),)
    state = stated.get("state_dtype")
    state_dtypes = (None, "bfloat16") if state in (None, "auto") else (str(state),)
    shapes = []
    for tp, kv_dtype, state_dtype, drafting in product(tps, kv_dtypes, state_dtypes, (False, True)):
        deployment = Deployment("sglang", tp=tp, kv_dtype=kv_dtype, state_dtype=state_dtype)
        try:
            layers = model_caches(spec, deployment)
            state_bytes, conv_bytes = slot_bytes(layers)
            extra = draft_caches(spec, deployment) if drafting else ()
            token = kv_bytes_per_token(layers + extra, spec.name)
        except HybridplanError:
            continue
        if drafting and not extra:
            continue
        shapes.append(_Shape(tp, kv_dtype, state_dtype, drafting, state_bytes, conv_bytes, token))
    return shapes


def _fits(shape: _Shape, facts: Sequence[Fact]) -> bool:
    """Whether the shape gives the pools' sizes as printed, to two decimals."""
    return all(_pool_fits(shape, fact) for fact in facts)


def _pool_fits(shape: _Shape, fact: Fact) -> bool:
    if fact.kind == "state_pool":
        rows = int(fact.values["slots"]) + 1
        state, conv = rows * shape.state_bytes, rows * shape.conv_bytes
        return _prints(state, fact.values["state_gib"]) and _prints(conv, fact.values["conv_gib"])
    printed = _kv_gib(fact) if fact.kind == "kv_pool" else None
    if printed is None:
        return True
    total_gib = int(fact.values["kv_tokens"]) * shape.token_bytes / GIB
    return abs(total_gib - printed) <= 0.011 + total_gib * 0.001


def _prints(size_bytes: int, printed: Value) -> bool:
    return abs(size_bytes / GIB - float(printed)) <= 0.0051


def _kv_gib(fact: Fact) -> float | None:
    if "kv_gib" in fact.values:
        return float(fact.values["kv_gib"])
    if "k_gib" in fact.values:
        return float(fact.values["k_gib"]) + float(fact.values["v_gib"])
    return None


_MEANINGS = {
    "state_pool": (
        "state slots, each one request's recurrent states over all linear layers",
        "slots + 1 dummy, times slot bytes",
        "--mamba-full-memory-ratio, --max-mamba-cache-size, --mem-fraction-static",
    ),
    "kv_pool": (
        "tokens of the KV pool of the attention layers",
        "memory left after slots, over KV bytes per token",
        "--mamba-full-memory-ratio, --kv-cache-dtype, --mem-fraction-static",
    ),
    "limits": (
        "requests that may run at once",
        "min(requested, KV tokens / 2, slots // slots per request)",
        "--max-running-requests, --mamba-radix-cache-strategy, --mamba-full-memory-ratio",
    ),
    "weights": ("what loading the weights took on this rank", "", "quantisation, --tp"),
}


def _line(
    fact: Fact, shape: _Shape | None, slots: int | None, stated: dict[str, Value]
) -> LineVerdict:
    meaning, formula, moved_by = _MEANINGS[fact.kind]
    ours, agrees = _recomputed(fact, shape, slots, stated)
    return LineVerdict(
        fact.line_number, fact.kind, fact.text, meaning, ours, agrees, formula, moved_by
    )


def _recomputed(
    fact: Fact, shape: _Shape | None, slots: int | None, stated: dict[str, Value]
) -> tuple[str | None, bool | None]:
    if fact.kind == "limits":
        return _clamp(int(fact.values["max_running_requests"]), slots, stated)
    if shape is None:
        return None, None
    if fact.kind == "state_pool":
        rows = int(fact.values["slots"]) + 1
        conv, state = rows * shape.conv_bytes / GIB, rows * shape.state_bytes / GIB
        slot = shape.state_bytes + shape.conv_bytes
        return f"{rows:,} x {slot:,} B: conv {conv:.2f} GB, state {state:.2f} GB", _pool_fits(
            shape, fact
        )
    if fact.kind == "kv_pool":
        total = int(fact.values["kv_tokens"]) * shape.token_bytes / GIB
        return (
            f"{fact.values['kv_tokens']:,} x {shape.token_bytes:,} B = {total:.2f} GB",
            _pool_fits(shape, fact),
        )
    return None, None


def _clamp(
    running: int, slots: int | None, stated: dict[str, Value]
) -> tuple[str | None, bool | None]:
    """The clamp, for the number of reserved slots that explains it."""
    if slots is None:
        return None, None
    asked = stated.get("max_running_requests")
    for reserved, strategy in _RESERVED.items():
        allowed = slots // reserved
        if running == (min(int(asked), allowed) if asked is not None else allowed):
            return f"{slots:,} slots // {reserved} = {allowed:,} ({strategy})", True
    if asked is not None and running == int(asked):
        return f"{running:,}, as requested", True
    impossible = running > slots or (asked is not None and running > int(asked))
    allowed_by = ", ".join(str(slots // reserved) for reserved in _RESERVED)
    return f"{slots:,} slots allow {allowed_by}", False if impossible else None


def _settings(shape: _Shape | None, stated: dict[str, Value]) -> tuple[Setting, ...]:
    settings = [Setting(key, str(value), "stated") for key, value in sorted(stated.items())]
    if shape is None:
        return tuple(settings)
    found = {
        "tp": str(shape.tp),
        "kv_dtype": shape.kv_dtype or "auto",
        "state_dtype": shape.state_dtype or "auto",
        "draft_layers": str(shape.draft_layers),
    }
    for key, value in found.items():
        if key not in stated:
            ordinary = value in ("auto", "False")
            settings.append(Setting(key, value, "default" if ordinary else "inferred"))
    return tuple(settings)
