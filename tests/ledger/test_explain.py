"""Every formula of --explain gives the figure's value when its inputs are put in."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hybridplan import Deployment, HybridplanError, ledger, load
from hybridplan.config.catalogue import entries
from hybridplan.config.spec import NGramConv
from hybridplan.errors import InputError
from hybridplan.ledger.explain import select
from hybridplan.ledger.figure import Figure
from hybridplan.report.explain import chains

DEPLOYMENTS = [
    Deployment(),
    Deployment("transformers"),
    Deployment("sglang", tp=2, drafts=3),
    Deployment(tp=8, dcp=2, kv_dtype="fp8", drafts=2),
    Deployment("llama.cpp"),
    Deployment("mlx"),
]


def _evaluated(figure: Figure) -> float:
    names = {item.name: item.value for item in figure.inputs}
    value = eval(figure.formula, {"__builtins__": {}, "ceil": math.ceil, "max": max, **names})
    assert isinstance(value, (int, float))
    return value


@pytest.mark.parametrize("name", list(entries()))
def test_formulas_give_the_figures(name: str) -> None:
    spec = load(name)
    explained = 0
    for deployment in DEPLOYMENTS:
        try:
            account = ledger(spec, deployment)
        except HybridplanError:
            continue  # the cut is refused; test_caches says when
        for figure in account.figures:
            if not figure.source.startswith("bisected"):
                assert _evaluated(figure) == figure.value, figure
                explained += 1
    assert explained


def test_two_convolutions_in_one_layer_are_told_apart() -> None:
    """Qwen3.8-Flash-Next with an n-gram convolution in its first layer."""
    spec = load("qwen3.8-flash-next")
    first, *rest = spec.layers
    ngram = NGramConv(channels=1024, conv_kernel=4, dilation=3)
    layers = (replace(first, mixers=(ngram, *first.mixers)), *rest)
    account = ledger(replace(spec, layers=layers))
    value = {figure.name: figure.value for figure in account.figures}
    assert value["ngram_conv_conv_bytes"] == 9 * 1024 * 2
    assert value["gdn_conv_bytes"] == 36 * 3 * 10240 * 2
    for figure in account.figures:
        if not figure.source.startswith("bisected"):
            assert _evaluated(figure) == figure.value


@pytest.mark.parametrize("name", list(entries()))
def test_inputs_are_explained_before_they_are_used(name: str) -> None:
    account = ledger(load(name))
    seen: set[str] = set()
    for figure in account.figures:
        used = {i.origin.removeprefix("figure ") for i in figure.inputs if "figure " in i.origin}
        assert used <= seen
        seen.add(figure.name)
    assert len(seen) == len(account.figures)


def test_inputs_name_the_config_keys() -> None:
    account = ledger(load("qwen3.5-0.8b"))
    (state,) = select(account.figures, "gdn_state_bytes")
    origins = {item.name: item.origin for item in state.inputs}
    assert origins["value_heads"] == "text_config.linear_num_value_heads"
    assert origins["key_dim"] == "text_config.linear_key_head_dim"
    assert "text_config.layer_types" in origins["layers"]


def test_an_assumption_is_carried_to_what_depends_on_it() -> None:
    account = ledger(load("phi-4-mini-flash-reasoning"))
    how = {figure.name: figure.how for figure in account.figures}
    assert how["mamba1_state_bytes"] == "assumed"
    assert how["request_bytes"] == "assumed"


def test_a_chain_is_printed_down_to_the_keys() -> None:
    account = ledger(load("qwen3.5-0.8b"))
    lines = list(chains(select(account.figures, "crossover_tokens"), account.figures))
    assert lines[0] == "crossover_tokens = 530 tokens  [derived]"
    text = "\n".join(lines)
    assert "ceil(request_bytes / (twin_bytes_per_token - bytes_per_token))" in text
    assert "value_heads = 16  [exact] text_config.linear_num_value_heads" in text


def test_an_unknown_figure_lists_those_there_are() -> None:
    account = ledger(load("qwen3.5-0.8b"))
    with pytest.raises(InputError, match=r"no figure is called 'bytes'.*crossover_tokens"):
        select(account.figures, "bytes")
