"""The fuzzer of vllm_fuzz.py as a test, where an interpreter with vLLM is at hand."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import vllm_fuzz


def test_random_traces_agree_with_vllm_when_it_is_installed() -> None:
    python, source = os.environ.get("VLLM_PYTHON"), os.environ.get("VLLM_SRC", "")
    if not python:
        pytest.skip(
            "vLLM is not installed here: set VLLM_PYTHON to an interpreter with its packages and"
            " VLLM_SRC to an unpacked wheel (see tests/conformance/vllm_import.py)"
        )
    count = int(os.environ.get("VLLM_FUZZ_TRACES", "200"))
    kinds: Counter[str] = Counter()
    for seed, kind, found in vllm_fuzz.compare(python, source, count, 0):
        kinds[kind] += 1
        assert kind != "differs", f"seed {seed}: {found[:3]}"
    assert kinds["agreed"] > kinds["refused"]
