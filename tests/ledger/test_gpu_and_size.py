from __future__ import annotations

import pytest

from hybridplan.errors import InputError
from hybridplan.ledger.gpu import find_gpu, gpus
from hybridplan.ledger.size import gib, parse_bytes


@pytest.mark.parametrize(
    "text,size",
    [
        ("42GiB", 42 * 1024**3),
        ("42 gib", 42 * 1024**3),
        ("80GB", 80 * 10**9),
        ("4.99GiB", 5357971701),
        ("1B", 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "--kv-memory") == size


@pytest.mark.parametrize("text", ["42", "", "GiB", "-3GiB", "1e5GiB", "nanGiB", "3 GiBs", "9EB"])
def test_sizes_that_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--kv-memory"):
        parse_bytes(text, "--kv-memory")


def test_huge_size_is_refused() -> None:
    with pytest.raises(InputError, match="1 EiB"):
        parse_bytes("999999999999TiB", "--kv-memory")


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "rtx5090", "RTX_PRO_6000", "gb10"])
def test_gpu_names(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.memory_bytes > 2**34
    assert gpu.bandwidth_bytes_per_s > 1e11


def test_every_gpu_of_the_issue_is_known() -> None:
    wanted = [
        "h200",
        "h100",
        "a100-80",
        "b200",
        "l40s",
        "rtx4090",
        "rtx5090",
        "rtx-pro-6000",
        "gb10",
        "mi300x",
    ]
    assert set(wanted) <= set(gpus())


def test_unknown_gpu_suggests() -> None:
    with pytest.raises(InputError, match="h200"):
        find_gpu("h2000")


def test_gib() -> None:
    assert gib(5357971701) == "4.99 GiB"
