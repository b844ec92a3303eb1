"""From a pasted log to a report: find the lines, find the model, hold them against our plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hybridplan.ledger.logs import sglang, vllm
from hybridplan.ledger.logs.lines import Fact, Value, read_facts
from hybridplan.ledger.logs.model import find_model
from hybridplan.ledger.logs.result import LogReport


def explain_log(
    lines: Iterable[str],
    name: str,
    *,
    model: str | None = None,
    settings: dict[str, Value] | None = None,
) -> LogReport:
    """Explain the memory lines of a vLLM or SGLang boot log.

    ``model`` and ``settings`` (tp, pp, kv_dtype, state_dtype, drafts, prefix_caching,
    max_model_len, block_size; generation and kernel_block_tokens as VllmOptions has them) win over
    what the log says. Where both engines' lines occur, the one with more lines is explained. Raises
    InputError for a log without a known line.
    """
    facts = read_facts(lines, name)
    measured = [fact.engine for fact in facts if fact.kind != "arguments"]
    engine = max(("vllm", "sglang"), key=measured.count)
    own = [fact for fact in facts if fact.engine == engine]
    stated = next(
        (str(f.values["model"]) for f in own if f.kind == "arguments" and "model" in f.values),
        None,
    )
    spec, said = find_model(stated, model)
    explainer = vllm.explain if engine == "vllm" else sglang.explain
    report = explainer(own, name, spec, said, dict(settings or {}))
    return replace(report, notes=(*_several(own), *report.notes))


def _several(facts: Sequence[Fact]) -> list[str]:
    served = dict.fromkeys(
        str(fact.values["model"])
        for fact in facts
        if fact.kind == "arguments" and "model" in fact.values
    )
    if len(served) < 2:
        return []
    return [
        f"the log is of several servers ({', '.join(served)}) and is read as one; explain each "
        "server's lines alone"
    ]
