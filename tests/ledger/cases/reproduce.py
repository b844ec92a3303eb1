"""A logged case through the product: figures reproduced, and whether they are the observed ones.

Which handler serves a case is decided by what the case observed, never by its id.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import case_boot
import case_bytes
import case_hits
from case_boot import Where
from case_settings import Case, NotDerivableError

from hybridplan.errors import HybridplanError

Handler = Callable[[Case], "dict[Where, Any]"]
# The first whose keys all stand in ``observed`` serves the case.
HANDLERS: tuple[tuple[tuple[str, ...], Handler], ...] = (
    (("ladder",), case_hits.ladder),
    (("units", "configs_exact"), case_hits.match_units),
    (("lcm_block_size", "hit_with_mtp"), case_hits.lcm_of_groups),
    (("block_size", "hits"), case_hits.hits),
    (("block_size", "prompt", "cached"), case_hits.hits),
    (("block_size", "prompt_tokens", "shared_prefix"), case_hits.hits),
    (("pool_bytes", "widths"), case_boot.widths),
    (("store_bytes", "load_bytes"), case_bytes.offloaded),
    (("block_size", "retrieved_tokens"), case_bytes.retrieved),
    (("hidden_state_block", "waste_bytes"), case_bytes.hidden_state_pages),
    (("block_size_before", "block_size_after"), case_bytes.ascend_blocks),
    (("ssm_bytes", "k_bytes_per_token"), case_bytes.ascend_blocks),
    (("mamba_page_kb", "attn_token_kb", "chunk"), case_bytes.whole_chunks),
    (("attn_blocks", "mamba_slots"), case_bytes.compact_pool),
    (("mamba_groups", "mamba_layers"), case_bytes.state_groups),
    (("num_layers", "bytes_per_token"), case_bytes.charged_layers),
    (("page_bytes", "ratio"), case_bytes.unified_pages),
    (("checkpoint_tb",), case_bytes.weights),
    (("prompt", "chunk", "checkpoint_at"), case_bytes.prefill_checkpoint),
    (("snapshot_bytes", "n_tokens"), case_bytes.snapshots),
    (("checkpoint_mib", "n_tokens"), case_bytes.checkpoint_line),
    (("interval_tokens", "checkpoints"), case_bytes.host_checkpoints),
    (("state_mib_per_seq", "n_ctx"), case_bytes.mamba_sequences),
    (("state_mib_per_slot", "max_batch_size"), case_bytes.slots_of_a_given_size),
    (("kv_mib", "rs_mib"), case_bytes.llama_pool),
    (("rs_total_mib", "cells"), case_bytes.llama_pool),
    (("tokens_per_slot", "points"), case_bytes.traded_slots),
    (("max_mamba_cache_size", "requested"), case_bytes.sglang_clamp),
    (("slots", "effective"), case_bytes.sglang_clamp),
    (("state_bytes_per_layer", "mamba_layers"), case_bytes.state_geometry),
    (("state_kib", "layers"), case_bytes.state_geometry),
    (("kv_tokens_before", "kv_tokens_after"), case_bytes.gained_tokens),
)
ABOUT = 0.01


@dataclass(frozen=True)
class Verdict:
    """``word`` is "agree", "not derivable" or "disagrees"; ``why`` says so for the last two."""

    word: str
    why: str = ""
    figures: int = 0


def load(path: Path) -> list[Case]:
    """A list of cases. Raises ValueError for another kind of file."""
    cases = json.loads(path.read_text())
    if not isinstance(cases, list) or not all("id" in case for case in cases):
        raise ValueError(f"{path} is not a list of cases with ids")
    return cases


def name(case: Case) -> str:
    """A readable id: number, theme, repository and thread."""
    source = case["source"].split("/")[-1].split(" ")[0].replace("#", "-")
    return f"{case['id']}-{case['theme']}-{source}"


def is_exact(case: Case) -> bool:
    """Whether its derivation says that every figure came out."""
    return str((case.get("derived") or {}).get("match", "")).startswith("exact")


def handler_of(case: Case) -> Handler:
    """Raises NotDerivableError where the case observed nothing a handler reproduces."""
    observed = case["observed"]
    for keys, handler in HANDLERS:
        if all(key in observed for key in keys):
            return handler
    listed = [one for key in ("points", "runs") for one in observed.get(key, ())]
    if case["engine"] == "sglang" and any("max_running" in one for one in listed):
        return case_bytes.sglang_clamp
    if case["engine"].startswith("vllm") and any(
        key in one
        for one in (observed, *listed)
        for key in (*case_boot.FIGURES, "pool_tokens", "kv_tokens_bf16")
    ):
        return case_boot.boot
    raise NotDerivableError(f"it observed {', '.join(observed)}, which no configuration decides")


def observed_at(case: Case, where: Where) -> Any:
    """The observed value at a place, or under "derived" the one its derivation names."""
    value = case["observed"]
    if where[0] == "derived":
        value, where = case["derived"]["predicted"], where[1:]
    for step in where:
        value = value[step]
    return value


def same(where: Where, ours: Any, observed: Any) -> bool:
    """Equal; within 1% for what the thread gave as "about"."""
    if str(where[-1]).endswith("_about") and isinstance(ours, (int, float)):
        return abs(ours - observed) <= ABOUT * abs(observed)
    return bool(ours == observed)


def differences(case: Case) -> tuple[list[str], int]:
    """What is not as observed, and how many figures were compared."""
    found = handler_of(case)(case)
    wrong = [
        f"{'.'.join(map(str, where))}: ours {ours}, observed {observed_at(case, where)}"
        for where, ours in found.items()
        if not same(where, ours, observed_at(case, where))
    ]
    return wrong, len(found)


def verdict(case: Case) -> Verdict:
    """The case in one word. Never raises for a case that is merely not reproduced."""
    return _verdict(json.dumps(case))


@cache
def _verdict(text: str) -> Verdict:
    case = json.loads(text)
    try:
        wrong, count = differences(case)
    except NotDerivableError as error:
        return Verdict("not derivable", str(error))
    except (HybridplanError, AssertionError) as error:
        return Verdict("disagrees", str(error)[:300])
    return Verdict("disagrees", "; ".join(wrong), count) if wrong else Verdict("agree", "", count)


def reason(case: Case) -> str:
    """Why a case is not expected to be reproduced: what it lacks, and what its derivation says."""
    match = str((case.get("derived") or {}).get("match", "")).strip()
    found = verdict(case)
    why = found.why if found.word != "agree" else ""
    said = f"derivation: {match}" if match else "no derivation closes it"
    return f"{why}; {said}" if why else said
