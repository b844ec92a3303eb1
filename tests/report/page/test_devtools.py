"""Both pages in a driven browser: nothing is loaded, keys work, names are read, letters clear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from hybridplan.cli import run
from hybridplan.report.page.settings import Settings, answer

from .browser import needs_chromium
from .devtools import Tab, chromium
from .random_settings import MODELS

pytestmark = needs_chromium

TRACES = Path(__file__).parents[2] / "data" / "traces"
AGENTS = str(TRACES / "lmcache_agent_derived.jsonl.gz")
EXPLORED = ("qwen3.5-0.8b", "kimi-linear-48b-a3b-instruct", "gpt-oss-20b", "falcon-h1-1.5b-base")
REPORTED = {
    "latency": (
        *("--trace", AGENTS, "--gpu", "l4", "--limit", "60", "--arrival", "timed"),
        *("--session-gap", "1", "--calibration", "preset", "--slo", "ttft=50ms,tpot=9ms"),
    ),
    "windows": (
        *("--trace", str(TRACES / "mooncake_conversation.jsonl.gz"), "--limit", "60"),
        *("--model", "gemma-3-27b-it", "--kv-memory", "40GiB", "--arrival", "closed:8"),
        *("--max-num-batched-tokens", "8192"),
    ),
    "sglang": (
        *("--trace", AGENTS, "--limit", "60", "--model", "nemotron-3-nano-30b-a3b-bf16"),
        *("--engine", "sglang", "--kv-memory", "40GiB"),
    ),
}
PAGES = (*EXPLORED, *REPORTED)

# Letters that touch others or leave their panel, in every figure that is shown.
LETTERS = """(() => {
  const found = [];
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    if (!picture.getBoundingClientRect().width) continue;
    const panel = picture.closest(".panel").getBoundingClientRect();
    const place = (t) => [t.textContent, t.getBoundingClientRect()];
    const texts = [...picture.querySelectorAll("text")].map(place);
    texts.forEach(([said, a], i) => {
      if (a.left < panel.left || a.right > panel.right) found.push(`${said} is cut`);
      for (const [other, b] of texts.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 4) found.push(`${said} on ${other}`);
      }
    });
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
  return found;
})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in PAGES}
    for model in EXPLORED:
        assert run(["explore", model, "-o", str(made[model])]) == 0
    for name, words in REPORTED.items():
        code = 1 if "--slo" in words else 0
        assert run(["report", *words, "--advice", "off", "-o", str(made[name])]) == code
    return made


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_itself_and_complains_of_nothing(
    tab: Tab, pages: dict[str, Path], name: str
) -> None:
    tab.open(pages[name])
    assert tab.loaded() == [pages[name].resolve().as_uri()]
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [1280, 800, 390])
@pytest.mark.parametrize("name", PAGES)
def test_letters_are_clear_of_each_other(
    tab: Tab, pages: dict[str, Path], name: str, width: int
) -> None:
    tab.open(pages[name], width)
    assert tab.eval(LETTERS) == []


@pytest.mark.parametrize(
    "link",
    [
        "#layers=175&full_layers=11&window_layers=62&parallel=73&state_kind=gdn",
        "#layers=1024&full_layers=1023&context_tokens=4194304&tp=8",
        "#full_layers=0&window_layers=0&state_kind=mamba2&drafts=7",
        "#full_layers=1&context_tokens=1&kv_heads=1&key_dim=16&value_dim=16",
    ],
    ids=["many groups", "many layers", "states alone", "tiny"],
)
@pytest.mark.parametrize("width", [1280, 390])
def test_letters_stay_clear_at_the_ends_of_sliders(
    tab: Tab, pages: dict[str, Path], link: str, width: int
) -> None:
    tab.open(pages["falcon-h1-1.5b-base"], width)
    tab.eval(f"history.replaceState(null, '', '{link}'); readLink(); update()")
    assert tab.eval(LETTERS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scheme_of_the_reader_is_followed(
    tab: Tab, pages: dict[str, Path], scheme: str
) -> None:
    for name in ("qwen3.5-0.8b", "latency"):
        tab.open(pages[name], dark=scheme == "dark")
        ground = tab.eval("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 24)"}[scheme]


ASKED = "JSON.stringify([settingsOf(knobs), byId('answers').dataset.answer || null])"


@pytest.mark.parametrize("name", EXPLORED)
def test_every_slider_moves_by_key_and_the_page_says_what_the_planner_says(
    tab: Tab, pages: dict[str, Path], name: str
) -> None:
    tab.open(pages[name])
    sliders = tab.eval("document.querySelectorAll('input[type=range]').length")
    still = []
    for index in range(sliders):
        tab.eval(f"document.querySelectorAll('input[type=range]')[{index}].focus()")
        before, moved = tab.eval("JSON.stringify(knobs)"), False
        for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):
            tab.press(key)
            asked, shown = json.loads(tab.eval(ASKED))
            moved = moved or tab.eval("JSON.stringify(knobs)") != before
            if shown is None:
                assert tab.eval("byId('refused').hidden") is False
                continue
            found, wanted = json.loads(shown), asdict(answer(Settings(**asked)))
            for part in ("block_tokens", "bytes_per_block", "crossover_tokens", "num_blocks"):
                assert found[part] == wanted[part], f"{part} at {asked}"
            assert [g["layers"] for g in found["groups"]] == [g["layers"] for g in wanted["groups"]]
        still += [] if moved else [index]
        tab.eval("byId('reset').click()")
    assert not still, "a key moves each of them"
    assert tab.complaints() == []


def test_tab_walks_through_all_controls_in_their_order(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["qwen3.5-0.8b"])
    stops = "a[href], summary, input, select, button, [tabindex='0']"
    wanted = tab.eval(
        f"""[...document.querySelectorAll("{stops}")].filter((e) => e.checkVisibility())"""
        ".map((e, i) => { e.dataset.stop = i; return i; })"
    )
    walked = []
    for _ in wanted:
        tab.press("Tab")
        walked.append(int(tab.eval("document.activeElement.dataset.stop") or -1))
        assert tab.eval("document.activeElement.matches(':focus-visible')")
    assert walked == wanted


def test_keys_open_tables_switch_boxes_and_skip(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["qwen3.5-0.8b"])
    tab.press("Tab")
    tab.press("Enter")
    assert tab.eval("location.hash") == "#answers"
    tab.eval("document.querySelector('#answers summary').focus()")
    tab.press("Enter")
    assert tab.eval("document.querySelector('#answers details').open") is True
    tab.eval("document.querySelector('input[type=checkbox]').focus()")
    tab.press("Space")
    assert tab.eval("knobs.prefix_caching") is False


@pytest.mark.parametrize("name", PAGES)
def test_whatever_is_worked_or_seen_is_read_out(
    tab: Tab, pages: dict[str, Path], name: str
) -> None:
    tab.open(pages[name])
    tab.eval("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    tree = tab.tree()
    worked = ("slider", "spinbutton", "combobox", "checkbox", "button", "DisclosureTriangle")
    seen = ("image", "table", "heading", "region", "columnheader", "rowheader", "link")
    for role, said in tree:
        assert said or role not in (*worked, *seen), f"a {role} has no name"
    roles = [role for role, _ in tree]
    assert {"main", "banner", "contentinfo", "image", "table"} <= set(roles)
    images = [said for role, said in tree if role == "image"]
    assert len(images) == len(set(images)), "two pictures read alike"
    levels = tab.eval("[...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_sliders_speak_the_number_beside_them(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["qwen3.5-0.8b"])
    spoken = tab.eval(
        "[...document.querySelectorAll('input[type=range]')].map((slider) => ["
        "slider.getAttribute('aria-valuetext'), byId(slider.dataset.knob).value])"
    )
    assert len(spoken) > 10
    for said, value in spoken:
        assert said == f"{int(value):,}"


def test_changes_are_announced(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["qwen3.5-0.8b"])
    tab.eval("document.querySelector('input[type=range][data-knob=tp]').focus()")
    tab.press("ArrowRight")
    tab.call("Emulation.setVirtualTimePolicy", policy="pauseIfNetworkFetchesPending", budget=2000)
    tab.wait("Emulation.virtualTimeBudgetExpired")
    tab.call("Emulation.setVirtualTimePolicy", policy="advance")
    spoken = tab.eval("byId('spoken').textContent")
    assert "block of" in spoken
    assert "crossover" in spoken
    assert ("status", "") in tab.tree()


def test_models_are_of_every_kind() -> None:
    assert set(EXPLORED) - set(MODELS) == {"gpt-oss-20b"}
