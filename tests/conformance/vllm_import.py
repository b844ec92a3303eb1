"""Make vLLM importable on a machine without a GPU, from an unpacked wheel.

Nothing of vLLM is copied or replaced but what cannot run here: compiled extensions become empty
modules, GPU-only packages import-only stubs, the platform object reports the compute capability of
an H200, and parallel groups have size one. Scheduler, cache manager and block pool are vLLM's own.

Setting it up (CPython 3.11, about 1 GB): a CPU build of torch 2.13 and the packages vLLM imports;
`pip download --no-deps vllm==0.33.0` (or 0.32.0); unpack the wheel without its `*.so` files.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

CAPABILITY = (9, 0)
DEVICE_NAME = "NVIDIA H200"
DEVICE_BYTES = 141 * 2**30

_EXTENSIONS = (
    "vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C", "vllm._flashmla_extension_C", "vllm._flashkda_C", "vllm._deepselect_C",
    "vllm._qutlass_C", "vllm.spinloop", "vllm.cumem_allocator", "vllm.fs_io_C",
    "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
)  # fmt: skip
_OP_NAMESPACES = (
    "_C", "_moe_C", "_C_cache_ops", "_vllm_fa2_C", "_vllm_fa3_C", "_flashkda_C", "_flashmla_C",
    "_flashmla_extension_C",
)  # fmt: skip
_UNSUPPORTED_OPS = (
    "cutlass_scaled_mm_supports_block_fp8", "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_fp4", "cutlass_group_gemm_supported",
    "cutlass_sparse_scaled_mm_supported",
)  # fmt: skip
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 16777216,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}


class _PlaceholderType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder()


class _Placeholder(metaclass=_PlaceholderType):
    """Stands at import time for classes and functions of absent packages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder()


class _StubModule(types.ModuleType):
    __version__ = "9.9.9"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _PlaceholderType(name, (_Placeholder,), {})


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _OpNamespace:
    """A torch.ops namespace whose missing operators have a name and cannot be called."""

    def __init__(self, original: Any) -> None:
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._original, name)
        except AttributeError:
            return _Placeholder()


def import_vllm(source: str | None) -> str:
    """Make ``import vllm`` work in this process, once. Returns its version."""
    if source:
        sys.path.insert(0, str(Path(source).resolve()))
    for name, value in {
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": tempfile.mkdtemp(prefix="vllm-cache-"),
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }.items():
        os.environ.setdefault(name, value)
    import torch

    for name in _EXTENSIONS:
        sys.modules[name] = types.ModuleType(name)
    for name in _UNSUPPORTED_OPS:
        setattr(torch.ops._C, name, lambda *args, **kwargs: False)
    sys.meta_path.append(_StubFinder("flashinfer", "flashinfer_cubin", "torchvision", "deep_gemm"))
    _pretend_cuda(torch)
    import vllm._custom_ops  # its fake kernels must be registered before the namespaces are stubbed

    for name in _OP_NAMESPACES:
        torch.ops.__dict__[name] = _OpNamespace(getattr(torch.ops, name))
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda function: function()
    import vllm
    import vllm.v1.core.sched.scheduler

    sys.meta_path.append(_StubFinder("cutlass", "quack", "cuda"))
    _single_rank(torch)
    return str(vllm.__version__)


def _pretend_cuda(torch: Any) -> None:
    class Properties:
        name = DEVICE_NAME
        multi_processor_count = 132
        total_memory = DEVICE_BYTES
        major, minor = CAPABILITY
        shared_memory_per_block_optin = 232448
        warp_size = 32
        regs_per_multiprocessor = 65536
        L2_cache_size = 50 * 2**20

    torch.cuda.get_device_properties = lambda *args, **kwargs: Properties
    torch.cuda.get_device_capability = lambda *args, **kwargs: CAPABILITY
    torch.cuda.Stream = torch.cuda.Event = _Placeholder
    torch.cuda.current_stream = lambda *args, **kwargs: _Placeholder()
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_current_stream_capturing = lambda: False

    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    def answer(value: Any) -> classmethod[Any, Any, Any]:
        return classmethod(lambda cls, *args, **kwargs: value)

    platforms._current_platform = type(
        "PretendedCuda",
        (NonNvmlCudaPlatform,),
        {
            "get_device_capability": answer(DeviceCapability(*CAPABILITY)),
            "get_device_name": answer(DEVICE_NAME),
            "get_device_total_memory": answer(DEVICE_BYTES),
            "get_device_uuid": answer("none"),
            "get_cuda_runtime_major": answer(13),
            "import_kernels": answer(None),
            "device_count": answer(64),
            "current_device": answer("meta"),
        },
    )()


def _single_rank(torch: Any) -> None:
    import vllm.distributed.parallel_state as state

    def group(name: str) -> types.SimpleNamespace:
        one = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)
        return types.SimpleNamespace(
            world_size=1, rank=0, rank_in_group=0, local_rank=0, ranks=[0], is_first_rank=True,
            is_last_rank=True, first_rank=0, last_rank=0, next_rank=0, prev_rank=0,
            unique_name=f"{name}:0", device_group=one, cpu_group=one, device=torch.device("cpu"),
            use_custom_op_call=False, device_communicator=None, mq_broadcaster=None,
        )  # fmt: skip

    for name in ("WORLD", "TP", "PP", "DP", "EP", "DCP", "PCP"):
        setattr(state, f"_{name}", group(name.lower()))


def model_folder() -> str:
    """A config.json that vLLM accepts; its numbers decide nothing here."""
    folder = tempfile.mkdtemp(prefix="vllm-model-")
    Path(folder, "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


def engine_config(arguments: dict[str, Any]) -> Any:
    """A VllmConfig through EngineArgs, the way ``vllm serve`` makes one."""
    from vllm.engine.arg_utils import EngineArgs

    defaults = {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
    }
    return EngineArgs(model=model_folder(), **{**defaults, **arguments}).create_engine_config()


def layer_spec(description: dict[str, Any]) -> Any:
    """A group's description as vLLM's own spec object."""
    import torch
    import vllm.v1.kv_cache_interface as interface

    fields = dict(description)
    kind = fields.pop("type")
    names = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
    if "dtype" in fields:
        fields["dtype"] = getattr(torch, names[fields["dtype"]])
    if kind == "mamba":
        fields["shapes"] = tuple(tuple(shape) for shape in fields["shapes"])
        fields["dtypes"] = tuple(getattr(torch, names[name]) for name in fields["dtypes"])
    classes = {
        "mamba": interface.MambaSpec,
        "full": interface.FullAttentionSpec,
        "mla": interface.MLAAttentionSpec,
        "sliding_window": interface.SlidingWindowSpec,
        "chunked_local": interface.ChunkedLocalAttentionSpec,
        "circular_buffer": interface.CircularBufferSpec,
    }
    return classes[kind](**fields)
