"""Triton's CUDA driver on a libcuda that does nothing, for host-side measurements and tests.

Everything above the driver API is real: compilation for sm_90, Triton's launcher in C, its encoding
of tensor maps. CPU tensors pass for device memory. Needs a C compiler, no GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

SOURCE = Path(__file__).with_name("idle_cuda.c")


class IdleCuda:
    """The counters of the idle libcuda, and a digest of its launches."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def _long(self, name: str) -> ctypes.c_long:
        return ctypes.c_long.in_dll(self._library, name)

    @property
    def launches(self) -> int:
        """Kernel launches so far."""
        return self._long("idle_launches").value

    @property
    def maps(self) -> int:
        """Tensor maps encoded so far."""
        return self._long("idle_maps").value

    @property
    def pointer_queries(self) -> int:
        """Pointers that the launcher asked the driver about."""
        return self._long("idle_pointer_queries").value

    def knows(self, compiled: Any) -> None:
        """Make the digest of this kernel's launches include their parameters."""
        sizes = parameter_bytes(compiled.asm["ptx"])
        table = (ctypes.c_int * 128 * 512).in_dll(self._library, "idle_sizes")
        table[compiled.function][: len(sizes)] = sizes

    def digest(self) -> int:
        """A number that stands for all launches since the last call, with what they were given."""
        kept = ctypes.c_ulonglong.in_dll(self._library, "idle_digest")
        value = kept.value
        kept.value = 14695981039346656037
        return value


def parameter_bytes(ptx: str) -> list[int]:
    """Sizes of a kernel's parameters, as its PTX declares them."""
    head = ptx[ptx.index(".entry") :].split(")", 1)[0]
    sizes = []
    for line in head.splitlines():
        found = re.search(r"\.param.*?\.([bsuf])(\d+).*?_param_\d+(?:\[(\d+)\])?", line)
        if found:
            sizes.append(int(found[2]) // 8 * int(found[3] or 1))
    return sizes


def activate(capability: tuple[int, int] = (9, 0)) -> IdleCuda:
    """Build the idle libcuda and make it Triton's active driver, as device 0 of ``capability``."""
    folder = Path(tempfile.mkdtemp(prefix="idle_cuda"))
    library = folder / "libcuda.so.1"
    include = Path(triton.__file__).parent / "backends/nvidia/include"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-w",
         f"-I{include}", "-Wl,-soname,libcuda.so.1", str(SOURCE), "-o", str(library)],
        check=True,
    )  # fmt: skip
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    from triton.backends.nvidia.driver import CudaDriver

    class Driver(CudaDriver):  # type: ignore[misc]
        """Device 0 at all times, with its default stream."""

        def __init__(self) -> None:
            super().__init__()
            self.device = 0
            self.stream = 0
            self.get_current_device = lambda: self.device
            self.get_current_stream = lambda _: self.stream
            self.get_device_capability = lambda _: capability

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    driver.set_active(Driver())
    return IdleCuda(loaded)
