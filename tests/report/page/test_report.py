"""The report's page: promises, numbers that are the library's, pictures to scale, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from hybridplan.cli import run
from hybridplan.config.find import load
from hybridplan.ledger.account import ledger
from hybridplan.ledger.deployment import Deployment, parse_engine
from hybridplan.ledger.planning import sglang, vllm
from hybridplan.ledger.planning.ask import MemoryAsk, VllmAsk
from hybridplan.ledger.planning.result import VllmResult
from hybridplan.ledger.size import parse_bytes
from hybridplan.report.page.plan_figures import groups_section
from hybridplan.report.page.report import ReportParts, report_page
from hybridplan.report.plot import curve_contexts
from hybridplan.sim.run import SimulateAsk
from hybridplan.sim.run import run as replay
from hybridplan.sim.setup import EngineAsk, SglangFlags, VllmFlags
from hybridplan.sim.traces import open_trace

from .browser import WIDTHS, needs_chromium, seen_at
from .markup import Page, complaints

TRACES = Path(__file__).parents[2] / "data" / "traces"
IDS, LENGTHS = "mooncake_conversation.jsonl.gz", "azure_llm_2023_conv.csv.gz"


@cache
def parts(
    model: str, memory: str, engine: str = "vllm", trace: str = IDS, tp: int = 1
) -> ReportParts:
    name, version = parse_engine(engine)
    spec, deployment = load(model), Deployment(name, version, tp=tp)
    asked = MemoryAsk(kv_memory_bytes=parse_bytes(memory, "memory"))
    flags = VllmFlags(max_num_batched_tokens=8192) if name == "vllm" else SglangFlags()
    if isinstance(flags, VllmFlags):
        plan = vllm.plan(
            VllmAsk(spec, deployment, flags.options, asked, max_num_batched_tokens=8192)
        )
    else:
        plan = sglang.plan(sglang.SglangAsk(spec, deployment, flags.options, asked))
    opened = open_trace(TRACES / trace, limit=80)
    result = replay(SimulateAsk(EngineAsk(spec, deployment, flags, asked), opened, advice="off"))
    curve = list(curve_contexts(spec.max_tokens))
    return ReportParts(ledger(spec, deployment, contexts=curve), plan, result, "hybridplan report")


CASES = {
    "gdn": ("qwen3.5-35b-a3b", "40GiB"),
    "windows": ("gemma-3-27b-it", "40GiB"),
    "attention alone": ("llama-3.1-8b", "20GiB"),
    "packed pages": ("glm-5.3-flash", "60GiB", "vllm", IDS, 8),
    "sglang": ("qwen3.5-0.8b", "4GiB", "sglang"),
    "no prefix ids": ("qwen3.5-0.8b", "40GiB", "vllm", LENGTHS),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@cases
def test_page_keeps_its_promises(case: tuple[str, ...]) -> None:
    page = report_page(parts(*case))
    assert complaints(page) == []
    assert "<script" not in page


@cases
def test_page_says_what_the_library_says(case: tuple[str, ...]) -> None:
    made = parts(*case)
    text = Page(report_page(made)).text
    result = made.replay
    if result.trace.unit_tokens is None:
        assert "no prefix ids" in text
    else:
        assert f"{result.hits.usable_rate:.1%} of {result.prompt_tokens:,} prompt tokens" in text
        for loss in result.losses:
            assert f"{loss.tokens:,}" in text
    if isinstance(made.plan, VllmResult):
        assert f"{made.plan.num_blocks:,} blocks" in text
        for group in made.plan.groups:
            assert f"{group.blocks_per_request:,}" in text
    if made.ledger.crossover.tokens is not None:
        assert f"crossover {made.ledger.crossover.tokens:,}" in text


def boxes(section: str, width: str) -> Iterator[tuple[str, float]]:
    """Class or fill of every box of one drawing, and how wide it is."""
    drawing = re.search(rf'<svg class="{width}".*?</svg>', section, re.DOTALL)
    assert drawing is not None
    for rect in re.findall(r"<rect([^>]*)/>", drawing[0]):
        found = dict(re.findall(r'(\w+)="([^"]*)"', rect))
        yield found.get("class", found.get("fill", "")), float(found["width"])


@pytest.mark.parametrize("width", ["wide", "middle", "narrow"])
@pytest.mark.parametrize("name", ["gdn", "windows", "packed pages"])
def test_pages_are_drawn_to_scale(name: str, width: str) -> None:
    plan = parts(*CASES[name]).plan
    assert isinstance(plan, VllmResult)
    drawn = list(boxes(groups_section(plan), width))
    rooms = [wide for look, wide in drawn if look == "frame"]
    rows: list[float] = []
    for look, wide in drawn:
        if look == "url(#hatched)":
            rows.append(0.0)
        elif look.startswith("fill-"):
            rows[-1] += wide
    shares = {round(group.content_bytes / plan.bytes_per_block, 2) for group in plan.groups}
    found = {round(row / room, 2) for row, room in zip(rows, rooms, strict=True)}
    assert len(rows) == len(rooms)
    for share in found:
        assert min(abs(share - wanted) for wanted in shares) <= 0.011
    assert len(found) >= len(shares) - 1


def test_a_hostile_trace_stays_text() -> None:
    made = parts(*CASES["gdn"])
    name = '<script>alert("x")</script>\u2028$style'
    setup = replace(made.replay.setup, model=name)
    info = replace(made.replay.trace, path=f"/x/{name}".replace("/script", "_script"))
    result = replace(made.replay, setup=setup, trace=info, assumptions=(name,))
    page = report_page(replace(made, replay=result, command=f"hybridplan {name}"))
    assert complaints(page) == []
    assert "<script" not in page


@needs_chromium
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    found = seen_at(report_page(parts(*CASES["packed pages"])), WIDTHS, tmp_path, width)
    assert found["inner"] == width
    assert found["scroll"] <= width, found["wide"]
    assert found["letters"] >= 11, "letters in figures stay readable"


def command(target: Path, *more: str) -> list[str]:
    trace = str(TRACES / IDS)
    return [
        "report", "--trace", trace, "--kv-memory", "20GiB", "--max-num-batched-tokens", "8192",
        "--limit", "40", "-o", str(target), *more,
    ]  # fmt: skip


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        target = tmp_path / name / "report.html"
        assert run(command(target)) == 0
        pages.append(target.read_bytes())
    assert pages[0] == pages[1]
    text = Page(pages[0].decode("utf-8")).text
    assert "--kv-memory 20GiB --limit 40 --max-num-batched-tokens 8192 -o report.html" in text


@pytest.mark.parametrize(
    "more, words",
    [
        (["-o", "{tmp}/none/x.html"], "does not exist"),
        (["-o", "{tmp}/x.pdf"], "must end in .html"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--trace", "{tmp}/none.jsonl"], "none.jsonl"),
        (["--advice", "much"], "--advice 'much'"),
        (["--engine", "mlx"], "mlx"),
    ],
    ids=["no folder", "suffix", "model", "trace", "advice", "engine"],
)
def test_bad_input_is_one_sentence(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.replace("{tmp}", str(tmp_path)) for argument in more]
    assert run(command(tmp_path / "x.html", *filled)) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_memory_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "x.html")
    assert run(["report", "--trace", str(TRACES / IDS), "-o", target]) == 2
    assert "--gpu h200" in capsys.readouterr().err
