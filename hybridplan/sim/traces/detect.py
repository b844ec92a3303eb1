"""Which format a file is in: the one whose fields its first rows carry, or an error naming all.

Formats that are known but hold no request rows this program can read are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridplan.errors import InputError
from hybridplan.sim.traces.aiperf import Aiperf
from hybridplan.sim.traces.azure import Azure
from hybridplan.sim.traces.bailian import Bailian
from hybridplan.sim.traces.burstgpt import BurstGPT
from hybridplan.sim.traces.chat import Chat, ShareGPT
from hybridplan.sim.traces.facts import How
from hybridplan.sim.traces.format import Format
from hybridplan.sim.traces.llmservingsim import LLMServingSim
from hybridplan.sim.traces.lmcache import LMCache
from hybridplan.sim.traces.mooncake import Mooncake
from hybridplan.sim.traces.own import Own
from hybridplan.sim.traces.plain import INPUTS, OUTPUTS, Plain
from hybridplan.sim.traces.records import Sample
from hybridplan.sim.traces.servegen import ServeGen
from hybridplan.sim.traces.sglang_log import SglangLog
from hybridplan.sim.traces.usage import Usage
from hybridplan.sim.traces.vidur import Vidur
from hybridplan.sim.traces.vllm_log import VllmLog
from hybridplan.sim.traces.weka import Weka

FORMATS: tuple[Format, ...] = (
    Own(), Mooncake(), Aiperf(), Bailian(), Azure(), BurstGPT(), Vidur(), ServeGen(),
    LLMServingSim(), Weka(), LMCache(), Chat(), ShareGPT(), VllmLog(), SglangLog(), Usage(),
    Plain(),
)  # fmt: skip

LOG_FORMATS = tuple(fmt.name for fmt in FORMATS if fmt.containers == ("log",))

_Known = tuple[str, Callable[[Sample], bool]]

UNREAD: tuple[_Known, ...] = (
    (
        "a ServeGen parameter file (rates or distributions, not requests; generate requests first)",
        lambda sample: (
            bool(sample.keys)
            and all(key.isdigit() for key in sample.keys)
            and all(isinstance(value, dict) for value in sample.first.values())
        ),
    ),
    (
        "an OpenTelemetry export (no reader; write input_length and output_length per span)",
        lambda sample: "resourceSpans" in sample.keys,
    ),
    (
        "a BLIS TraceV2 table (no reader)",
        lambda sample: {"prefix_group", "arrival_time_us"} <= sample.keys,
    ),
    (
        "a TraceLab trace (its reuse is one provider's cache, not prompts; no reader)",
        lambda sample: "newly_append_tokens" in sample.keys,
    ),
    (
        "an SGLang agentic trace (turn deltas in one object; no reader)",
        lambda sample: {"metadata", "conversations"} <= sample.keys,
    ),
    (
        "an aibrix workload (several requests per row; no reader)",
        lambda sample: (
            isinstance(sample.first.get("requests"), list)
            and any("Prompt Length" in r for r in sample.first["requests"] if isinstance(r, dict))
        ),
    ),
    (
        "a SageMaker capture (bodies are strings; no reader)",
        lambda sample: "captureData" in sample.keys,
    ),
)


def format_names() -> tuple[str, ...]:
    """The names ``--format`` takes."""
    return tuple(fmt.name for fmt in FORMATS)


def choose_format(path: str, sample: Sample, forced: str | None) -> tuple[Format, How]:
    """The format of a file and how it was chosen.

    Raises InputError when none fits, when several do, or when the forced one cannot be read from
    this kind of file.
    """
    if forced is not None:
        return _forced(path, sample, forced), "given"
    found = [fmt for fmt in FORMATS if sample.container in fmt.containers and fmt.matches(sample)]
    if len(found) == 1:
        return found[0], "inferred"
    if found:
        names = " or ".join(f"--format {fmt.name}" for fmt in found)
        raise InputError(f"{path} fits several formats by its field names; say {names}")
    for what, fits in UNREAD:
        if fits(sample):
            raise InputError(f"{path} is {what}")
    keys = ", ".join(sorted(sample.keys)[:8]) or "none"
    raise InputError(
        f"{path} is no known trace: its fields are {keys}; a table needs {INPUTS[0]} and "
        f"{OUTPUTS[0]} at least (formats: {', '.join(format_names())})"
    )


def _forced(path: str, sample: Sample, forced: str) -> Format:
    for fmt in FORMATS:
        if fmt.name == forced:
            if sample.container not in fmt.containers:
                raise InputError(
                    f"{path} is {sample.container}, but --format {forced} is read from "
                    f"{' or '.join(fmt.containers)}"
                )
            return fmt
    raise InputError(f"--format {forced} is unknown; there are {', '.join(format_names())}")
