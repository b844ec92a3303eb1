"""The card as it is found: what it is, its clocks, and who else uses it. Only queries."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

from hybridplan.errors import InputError
from hybridplan.measure import extras
from hybridplan.measure.result import Clocks, Device

_CLOCK_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
    "driver_version",
)
_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sync_boost",
)
_HARMLESS = frozenset({"gpu_idle"})


def find(torch: Any, index: int) -> Any:
    """The torch device of that index. Raises InputError saying what is missing and what runs."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch is built without CUDA" if built is None else "torch finds no CUDA device"
        raise InputError(
            f"measure --gpu cannot run here: {why} (torch {torch.__version__}); "
            "--cpu runs every check of bytes and mathematics without a GPU"
        )
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise InputError(
            f"--gpu {index} does not exist: this machine shows {count} CUDA "
            f"device{'s' if count != 1 else ''}, numbered from 0"
        )
    major, minor = torch.cuda.get_device_capability(index)
    if major < 8:
        name = torch.cuda.get_device_name(index)
        raise InputError(
            f"{name} has compute capability {major}.{minor} and the kernels need 8.0; "
            "--cpu runs every check of bytes and mathematics without a GPU"
        )
    return torch.device("cuda", index)


def describe(torch: Any, device: Any) -> Device:
    """Card, software and other users, before anything large is allocated."""
    versions = {name: extras.version(name) for name in ("triton", "transformers")}
    if device.type != "cuda":
        memory = _host_memory_bytes()
        return Device(
            platform.processor() or platform.machine(), None, "", memory, memory, 0, 0, 0,
            os.cpu_count() or 1, 0, "", "", torch.__version__, versions["triton"],
            versions["transformers"], platform.python_version(), None, None,
        )  # fmt: skip
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    properties = torch.cuda.get_device_properties(device)
    identity = _identity(properties)
    used, processes = _others(identity, total - free)
    peers = sum(
        torch.cuda.can_device_access_peer(device.index, other)
        for other in range(torch.cuda.device_count())
        if other != device.index
    )
    driver = _query(identity, ("driver_version",))
    return Device(
        name=properties.name,
        index=device.index,
        capability=f"{properties.major}.{properties.minor}",
        memory_bytes=total,
        free_bytes=free,
        others_bytes=used,
        other_processes=processes,
        l2_bytes=int(properties.L2_cache_size),
        multiprocessors=int(properties.multi_processor_count),
        peers=peers,
        driver=driver[0] if driver else "",
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        triton=versions["triton"],
        transformers=versions["transformers"],
        python=platform.python_version(),
        before=clocks(torch, device),
        after=None,
    )


def clocks(torch: Any, device: Any) -> Clocks | None:
    """Clocks, temperature, power and reasons of lower clocks; None without nvidia-smi."""
    if device.type != "cuda":
        return None
    identity = _identity(torch.cuda.get_device_properties(device))
    row = _query(identity, _CLOCK_FIELDS)
    if row is None:
        return None
    return Clocks(_int(row[0]), _int(row[1]), _int(row[2]), _float(row[3]), _reasons(identity))


def throttled(clock: Clocks | None) -> tuple[str, ...]:
    """Reasons of lower clocks that matter under load."""
    return tuple(r for r in clock.reasons if r not in _HARMLESS) if clock else ()


def _identity(properties: Any) -> str:
    """What nvidia-smi calls this card; indices differ under CUDA_VISIBLE_DEVICES."""
    uuid = str(getattr(properties, "uuid", ""))
    return uuid if uuid.startswith("GPU-") or not uuid else f"GPU-{uuid}"


def _smi(*arguments: str) -> list[list[str]] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *arguments, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]


def _query(identity: str, fields: tuple[str, ...]) -> list[str] | None:
    selected = ("-i", identity) if identity else ()
    rows = _smi(*selected, f"--query-gpu={','.join(fields)}")
    return rows[0] if rows and len(rows[0]) == len(fields) else None


def _reasons(identity: str) -> tuple[str, ...]:
    """Active reasons; drivers before 535 call them throttle reasons."""
    for prefix in ("clocks_event_reasons", "clocks_throttle_reasons"):
        row = _query(identity, tuple(f"{prefix}.{name}" for name in _REASONS))
        if row is not None:
            return tuple(name for name, said in zip(_REASONS, row, strict=True) if said == "Active")
    return ()


def _others(identity: str, used_bytes: int) -> tuple[int, int]:
    """Bytes and number of other processes on the card.

    In a container nvidia-smi lists no process; then it is the memory in use beyond what a CUDA
    context of our own takes.
    """
    selected = ("-i", identity) if identity else ()
    rows = _smi(*selected, "--query-compute-apps=pid,used_memory") or []
    others = [row for row in rows if len(row) == 2 and row[0] != str(os.getpid())]
    listed = sum((_int(row[1]) or 0) << 20 for row in others)
    own_context = 1 << 30
    return max(listed, used_bytes - own_context, 0), len(others)


def _int(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _host_memory_bytes() -> int:
    return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
