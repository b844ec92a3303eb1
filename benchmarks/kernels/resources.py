"""Registers, spills and shared memory of compiled kernels, read from their cubins without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton


@dataclass(frozen=True)
class Resources:
    """What one program of a kernel takes: registers and stack bytes of a thread, shared bytes."""

    kernel: str
    warps: int
    stages: int
    registers: int
    stack_bytes: int
    local_accesses: int
    shared_bytes: int
    matrix_products: int
    exponentials: int
    barriers: int
    instructions: int


def resources(compiled: Any) -> Resources:
    """Of a kernel compiled by Triton; instructions are counted in its machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        code = _tool("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    ops = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d\s+)?([A-Z0-9_.]+)", code, re.MULTILINE)
    return Resources(
        compiled.metadata.name,
        compiled.metadata.num_warps,
        compiled.metadata.num_stages,
        int(found[1]),
        int(found[2]),
        sum(op.startswith(("LDL", "STL")) for op in ops),
        compiled.metadata.shared,
        sum("GMMA" in op or op.startswith("HMMA") for op in ops),
        sum(op.startswith("MUFU.EX2") for op in ops),
        sum(op.startswith("BAR.") for op in ops),
        len(ops),
    )


def _tool(name: str, *arguments: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    done = subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True)
    return done.stdout
