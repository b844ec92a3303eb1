"""The fuzzer of vllm_pool_fuzz.py as a test, where an interpreter with vLLM is at hand."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path

import pytest


def test_random_pools_agree_with_vllm_when_it_is_installed() -> None:
    python, source = os.environ.get("VLLM_PYTHON"), os.environ.get("VLLM_SRC", "")
    if not python:
        pytest.skip(
            "vLLM is not installed here: set VLLM_PYTHON to an interpreter with its packages and"
            " VLLM_SRC to an unpacked wheel (see tests/conformance/vllm_import.py)"
        )
    path = Path(__file__).with_name("vllm_pool_fuzz.py")
    spec = importlib.util.spec_from_file_location("vllm_pool_fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    count = int(os.environ.get("VLLM_FUZZ_POOLS", "60"))
    kinds: Counter[str] = Counter()
    for name, kind, found in fuzz.compare(python, source, count, 0):
        kinds[kind] += 1
        assert kind != "differs", f"{name}: {found[:3]}"
    assert kinds["agreed"] > kinds["refused"]
