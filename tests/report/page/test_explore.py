"""The explorer's page: promises, the numbers it shows when moved, and how it says no."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hybridplan.cli import run
from hybridplan.config.find import load
from hybridplan.ledger.deployment import Deployment
from hybridplan.report.page.explore import explore_page
from hybridplan.report.page.of_model import of_model
from hybridplan.report.page.settings import Settings, answer

from .browser import WIDTHS, needs_chromium, seen, seen_at
from .markup import Page, complaints

_KEPT = ("qwen3.5-0.8b", "kimi-linear-48b-a3b-instruct", "falcon-h1-1.5b-base", "gemma-3-27b-it")


def page_of(model: str, **deployment: Any) -> str:
    command = f"hybridplan explore {model} -o explore.html"
    return explore_page(load(model), Deployment("vllm", **deployment), model, command)


@pytest.mark.parametrize("model", [*_KEPT, "llama-3.1-8b", "mamba2-2.7b-original-format"])
def test_page_keeps_its_promises(model: str) -> None:
    assert complaints(page_of(model)) == []


def test_same_model_gives_the_same_bytes() -> None:
    assert page_of("kimi-k3") == page_of("kimi-k3")


def test_a_hostile_name_stays_text() -> None:
    name = '</script><img src=x onerror="alert(1)">&amp;\u2028${x}$y'
    spec = replace(load("qwen3.5-0.8b"), name=name)
    page = explore_page(spec, Deployment(), name, f"hybridplan explore {name!r}")
    assert complaints(page) == []
    assert "<img" not in page
    heading = Page(page).text
    assert name.replace("\u2028", " ") in heading


def test_without_scripts_the_planner_answers(tmp_path: Path) -> None:
    settings = of_model(load("qwen3.5-0.8b"), Deployment())
    found = answer(settings)
    text = Page(page_of("qwen3.5-0.8b")).text
    assert f"{found.crossover_tokens:,} tokens" in text
    assert f"{found.block_tokens:,} tokens" in text


_LINKS = """
const shown = (link) => {
  history.replaceState(null, "", link || location.pathname);
  readLink();
  update();
  return JSON.parse(byId("answers").dataset.answer || "null");
};
byId("seen").textContent = JSON.stringify(LINKS.map(shown));
"""


@needs_chromium
def test_links_show_what_the_planner_says(tmp_path: Path) -> None:
    own = of_model(load("qwen3.5-35b-a3b"), Deployment())
    example = of_model(load("nemotron-3-nano-30b-a3b-bf16"), Deployment())
    states = {
        name: getattr(example, name)
        for name in asdict(own)
        if name.startswith(("state_", "conv_kernel", "conv_channels", "conv_over"))
        and name not in ("state_layers", "state_dtype")
    }
    asked: dict[str, Settings] = {
        "": own,
        "#tp=2&kv_dtype=fp8": replace(own, tp=2, kv_dtype="fp8"),
        "#layers=48": replace(own, full_layers=10, state_layers=38),
        "#full_layers=40": replace(own, full_layers=40, state_layers=0),
        "#window_layers=12&window_tokens=4096": replace(
            own, window_layers=12, window_tokens=4096, state_layers=18
        ),
        "#drafts=3&state_dtype=bfloat16": replace(own, drafts=3, state_dtype="bfloat16"),
        "#state_kind=mamba2": replace(own, **states),
        "#block_tokens=256&prefix_caching=false": replace(
            own, block_tokens=256, prefix_caching=False
        ),
    }
    script = f"const LINKS = {json.dumps(list(asked))};{_LINKS}"
    answers = seen(page_of("qwen3.5-35b-a3b"), script, tmp_path)
    for (link, settings), shown in zip(asked.items(), answers, strict=True):
        wanted = asdict(answer(settings))
        assert shown is not None, f"{link} was refused"
        for name in ("block_tokens", "bytes_per_block", "crossover_tokens", "kv_tokens"):
            assert shown[name] == wanted[name], f"{name} at {link!r}"
        assert [g["layers"] for g in shown["groups"]] == [g["layers"] for g in wanted["groups"]]


_MOVES = """
const move = (selector, value) => {
  const field = document.querySelector(selector);
  field.focus();
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
};
const found = [];
const note = () => found.push({
  knobs: { ...knobs }, link: location.hash, cards: byId("cards").textContent,
  refused: byId("refused").hidden ? "" : byId("refused").textContent,
  most: document.querySelector("input[type=range][data-knob=full_layers]").max,
});
move("input[type=range][data-knob=tp]", 1); note();
move("#layers", 24); note();
move("#query_heads", 15); note();
byId("reset").click(); note();
byId("seen").textContent = JSON.stringify(found);
"""


@needs_chromium
def test_controls_move_the_page_and_refusals_are_said(tmp_path: Path) -> None:
    sharded, fewer, refused, back = seen(page_of("qwen3.5-35b-a3b"), _MOVES, tmp_path)
    assert sharded["knobs"]["tp"] == 2
    assert sharded["link"] == "#tp=2"
    assert fewer["knobs"]["layers"] == 24
    assert fewer["knobs"]["full_layers"] == 6, "the share of attention stays when layers move"
    assert fewer["most"] == "24"
    assert "TP 2 does not divide the 15 attention heads" in refused["refused"]
    assert back["link"] == ""
    assert back["refused"] == ""
    assert back["knobs"]["layers"] == 40


@needs_chromium
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    found = seen_at(page_of("kimi-linear-48b-a3b-instruct"), WIDTHS, tmp_path, width)
    assert found["inner"] == width
    assert found["scroll"] <= width, found["wide"]
    assert found["letters"] >= 11, "letters in figures stay readable"


def test_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "explore.html"
    assert run(["explore", "qwen3.5-0.8b", "--tp", "2", "-o", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    assert "hybridplan explore qwen3.5-0.8b --tp 2 -o explore.html" in text
    assert capsys.readouterr().out == f"wrote {target}\n"


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["qwen3.5-0.8b", "-o", "{tmp}/none/x.html"], 2, "does not exist"),
        (["qwen3.5-0.8b", "-o", "{tmp}/x.txt"], 2, "must end in .html"),
        (["no-such-model", "-o", "{tmp}/x.html"], 2, "no-such-model"),
        (["qwen3.5-0.8b", "--memory-gib", "0", "-o", "{tmp}/x.html"], 2, "--memory-gib 0"),
        (["qwen3.5-0.8b", "--kv-dtype", "fp7", "-o", "{tmp}/x.html"], 2, "fp7"),
        (["qwen3.5-0.8b", "--kv-dtype", "nvfp4", "-o", "{tmp}/x.html"], 1, "nvfp4"),
        (["kimi-k3", "--state-dtype", "bfloat16", "-o", "{tmp}/x.html"], 1, "in float32"),
        (["qwen3.5-0.8b", "--tp", "3", "-o", "{tmp}/x.html"], 2, "does not divide"),
        (["deepseek-v3.2", "-o", "{tmp}/x.html"], 1, "sparse attention with an index"),
    ],
    ids=[
        "no folder",
        "suffix",
        "model",
        "memory",
        "dtype",
        "kv dtype",
        "kda state",
        "ranks",
        "no sliders",
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    assert run(["explore", *filled]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "taken.html"
    target.mkdir()
    assert run(["explore", "qwen3.5-0.8b", "-o", str(target)]) == 2
    assert "is a folder" in capsys.readouterr().err
