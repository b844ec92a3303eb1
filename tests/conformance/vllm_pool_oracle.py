"""Ask vLLM itself how it would lay out its KV pool: cases on stdin, answers on stdout, JSON lines.

    VLLM_PYTHON vllm_pool_oracle.py --src VLLM_SRC --gpu sm90 < cases > answers

Real: EngineArgs and the model's config hooks, the model class built on torch's meta device, backend
selection, every layer's cache spec, block-size alignment, layout, grouping and the engine core's
own initialisation. Pretended: what vllm_import.py says, the parallel groups' sizes, the executor.
An answer has the fields of the golden files; a refusal is {"error": ...}.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import types
from dataclasses import replace
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import vllm_import

GPUS = {
    "sm80": ((8, 0), "NVIDIA A100-SXM4-80GB", 80 * 2**30),
    "sm90": ((9, 0), "NVIDIA H200", 141 * 2**30),
    "sm100": ((10, 0), "NVIDIA B200", 180 * 2**30),
    "sm120": ((12, 0), "NVIDIA RTX PRO 6000", 96 * 2**30),
}
_CONFIG_CLASS = """from transformers import PretrainedConfig
class CaseConfig(PretrainedConfig):
    model_type = "{model_type}"
"""


class _SparseWrapper(vllm_import._Placeholder):
    """FlashInfer's MLA wrapper with the argument by which vLLM knows that SM 9.0 is served."""

    def run(self, *args: Any, ckv_scale_arr: Any = None, **kwargs: Any) -> None:
        raise RuntimeError("nothing is launched here")


def activate(source: str, gpu: str) -> str:
    """Import vLLM on the pretended GPU. Returns its version."""
    vllm_import.CAPABILITY, vllm_import.DEVICE_NAME, vllm_import.DEVICE_BYTES = GPUS[gpu]
    vllm_import._StubModule.BatchMLAPagedAttentionWrapper = _SparseWrapper
    vllm_import._StubModule.get_trtllm_gen_multi_ctas_kv_counter_bytes = staticmethod(
        lambda *args, **kwargs: 1024
    )
    return vllm_import.import_vllm(source)


def parallel(tp: int, pp: int, rank: int, dcp: int) -> None:
    """Give the parallel groups their sizes, and this process its pipeline rank."""
    import torch
    import vllm.distributed.parallel_state as state

    sizes = {"WORLD": tp * pp, "TP": tp, "PP": pp, "DP": 1, "EP": tp, "DCP": dcp, "PCP": 1}
    for name, size in sizes.items():
        mine = rank if name == "PP" else 0
        side = types.SimpleNamespace(size=lambda n=size: n, rank=lambda n=mine: n)
        group = types.SimpleNamespace(
            world_size=size,
            rank=mine,
            rank_in_group=mine,
            local_rank=0,
            ranks=list(range(size)),
            is_first_rank=mine == 0,
            is_last_rank=mine == size - 1,
            first_rank=0,
            last_rank=size - 1,
            next_rank=(mine + 1) % size,
            prev_rank=(mine - 1) % size,
            unique_name=f"{name.lower()}:0",
            device_group=side,
            cpu_group=side,
            device=torch.device("cpu"),
            use_custom_op_call=False,
            device_communicator=None,
            mq_broadcaster=None,
        )
        setattr(state, f"_{name}", group)


def config_folder(config: dict[str, Any]) -> str:
    """A model folder with that config.json, and a config class where transformers has none."""
    folder = Path(tempfile.mkdtemp(prefix="case-"))
    config = dict(config)
    if config.pop("_generic_config_class", False):
        text = _CONFIG_CLASS.format(model_type=config["model_type"])
        (folder / "configuration_case.py").write_text(text)
        config["auto_map"] = {"AutoConfig": "configuration_case.CaseConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def engine_config(folder: str, arguments: dict[str, Any]) -> Any:
    """A VllmConfig through EngineArgs."""
    from vllm.engine.arg_utils import EngineArgs

    given = dict(arguments)
    ranks = given.get("tensor_parallel_size", 1) * given.get("pipeline_parallel_size", 1)
    defaults = {
        "skip_tokenizer_init": True,
        "trust_remote_code": Path(folder, "configuration_case.py").exists(),
        "load_format": "dummy",
        "enforce_eager": True,
        "distributed_executor_backend": "uni" if ranks == 1 else "mp",
    }
    return EngineArgs(model=folder, **{**defaults, **given}).create_engine_config()


def _on_meta() -> Any:
    """A mode that sends every allocation, named "cuda" or not, to the meta device."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        named = isinstance(value, str) and value.startswith("cuda")
        device = isinstance(value, torch.device) and value.type == "cuda"
        return "meta" if named or device else value

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") in ("cuda", "pin_memory"):
                return args[0]
            named = {key: moved(value) for key, value in (kwargs or {}).items()}
            return func(*(moved(value) for value in args), **named)

    return Mode()


def _workspace() -> None:
    """Scratch that some sparse backends reserve when they are built."""
    import torch
    import vllm.v1.worker.workspace as workspace

    class Scratch(vllm_import._Placeholder):
        def get_simultaneous(self, *shapes: Any) -> list[Any]:
            return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]

    workspace._manager = Scratch()


def layers_of(config: Any) -> tuple[dict[str, Any], list[Any]]:
    """Build the model and its drafter; the cache specs and backends of their layers."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.config.vllm import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    _workspace()
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with set_current_vllm_config(config), torch.device("meta"), _on_meta():
            initialize_model(config)
        target = set(get_layers_from_vllm_config(config, AttentionLayerBase))
        speculative = config.speculative_config
        if speculative is not None and speculative.method in ("mtp", "eagle", "eagle3"):
            draft = config
            if hasattr(speculative, "apply_draft_overrides"):
                draft = speculative.apply_draft_overrides(config)
            with set_current_vllm_config(draft), torch.device("meta"), _on_meta():
                initialize_model(draft, model_config=speculative.draft_model_config)
            found = get_layers_from_vllm_config(config, AttentionLayerBase)
            for name in set(found) - target:
                found[name].is_draft_layer = True
    finally:
        torch.set_default_dtype(before)
    current_platform.update_block_size_for_backend(config)
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    backends = list(dict.fromkeys(layer.get_attn_backend() for layer in layers.values()))
    return get_kv_cache_spec(config), backends


def given_layers(entries: list[dict[str, Any]], drafts_known: bool) -> dict[str, Any]:
    """Layers written by hand, as vLLM's spec objects."""
    import vllm.v1.kv_cache_interface as interface
    from vllm.v1.attention.backend import MultipleOf

    specs: dict[str, Any] = {}
    for entry in entries:
        fields = dict(entry)
        name, count = fields.pop("name", None), fields.pop("count", 1)
        indexer, alignment = fields.pop("indexer", False), fields.get("block_stride_alignment")
        if not drafts_known:
            fields.pop("is_draft", None)
        if isinstance(alignment, dict):
            fields["block_stride_alignment"] = MultipleOf(alignment["multiple_of"])
        if isinstance(fields.get("tokens_per_state"), str):
            fields["tokens_per_state"] = Fraction(fields["tokens_per_state"])
        if indexer:
            fields["cache_role"] = interface.SparseCacheRole.INDEXER
        spec = _spec(fields, interface)
        for i in range(count):
            full = name or f"layers.{len(specs)}.{entry['type']}"
            if count > 1:
                full = full.replace("{i}", str(i)) if "{i}" in full else f"{full}.{i}"
            specs[full] = spec
    return specs


def _spec(fields: dict[str, Any], interface: Any) -> Any:
    import torch

    kind = fields["type"]
    if kind == "chunked_local":
        names = {"bf16": torch.bfloat16, "fp32": torch.float32}
        rest = {key: value for key, value in fields.items() if key not in ("type", "dtype")}
        return interface.ChunkedLocalAttentionSpec(dtype=names[fields["dtype"]], **rest)
    if fields.get("dtype") == "uint8":
        rest = {key: value for key, value in fields.items() if key != "dtype"}
        return replace(vllm_import.layer_spec({**rest, "dtype": "bf16"}), dtype=torch.uint8)
    return vllm_import.layer_spec(fields)


class _Executor:
    """What the engine core asks of its workers while it lays out the pool."""

    def __init__(self, specs: list[Any], layouts: list[str], available: list[int]) -> None:
        self.specs, self.layouts, self.available = specs, layouts, available
        self.configs: list[Any] = []

    def get_kv_cache_specs(self) -> list[Any]:
        return self.specs

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [self.layouts] * len(self.specs)

    def set_kv_cache_layout(self, *layout: Any) -> None:
        pass

    def determine_available_memory(self) -> list[int]:
        return list(self.available)

    def initialize_from_config(self, configs: list[Any]) -> None:
        self.configs = configs

    def compile_or_warm_up_model(self) -> None:
        pass


def answer(case: dict[str, Any], version: str) -> dict[str, Any]:
    """One case, as vLLM decides it. Raises what vLLM raises."""
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
    from vllm.v1.engine.core import EngineCore

    arguments = dict(case.get("engine_args", {}))
    tp, pp = (arguments.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    dcp = arguments.get("decode_context_parallel_size", 1)
    if case.get("hf_config") is not None:
        folder, specs = config_folder(case["hf_config"]), []
        for rank in range(pp):
            parallel(tp, pp, rank, dcp)
            config = engine_config(folder, arguments)
            config.parallel_config.rank = rank * tp
            found, backends = layers_of(config)
            specs.append(found)
        layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    else:
        parallel(tp, pp, 0, dcp)
        config = engine_config(vllm_import.model_folder(), {"max_model_len": 131072, **arguments})
        if "mamba_cache_mode" in case:
            config.cache_config.mamba_cache_mode = case["mamba_cache_mode"]
        specs = [given_layers(case["layers"], version != "0.32.0")]
        layouts = case.get("layout", "LBNHC")
        layouts = layouts if isinstance(layouts, list) else [layouts]
        blocks = [spec.block_size for spec in specs[0].values() if spec.prefix_cacheable]
        config.cache_config.block_size = min(blocks) if blocks else 16
    available = case["available_bytes"]
    executor = _Executor(
        specs, layouts, available if isinstance(available, list) else [available] * len(specs)
    )
    core = types.SimpleNamespace(
        model_executor=executor,
        vllm_config=config,
        available_gpu_memory_for_kv_cache=-1,
        collective_rpc=lambda *args, **kwargs: None,
    )
    aligned = config.cache_config.block_size
    scheduler = EngineCore._initialize_kv_caches(core, config)
    return _told(version, config, scheduler, specs, executor.configs, aligned)


def _told(
    version: str, config: Any, scheduler: Any, specs: list[Any], workers: list[Any], aligned: int
) -> dict[str, Any]:
    import vllm.v1.core.kv_cache_utils as utils

    cache = config.cache_config
    layout = cache.get_resolved_kv_cache_layout()
    scheduler_tokens, hash_tokens = utils.resolve_kv_cache_block_sizes(scheduler, config)
    told = [_worker(config, worker, layout) for worker in workers]
    return {
        "vllm_version": version,
        "after_alignment": {
            "block_size": aligned,
            "mamba_block_size": cache.mamba_block_size,
            "mamba_page_size_padded": cache.mamba_page_size_padded,
        },
        "layer_specs": [
            {"spec": _layer(spec), "layers": [name]} for one in specs for name, spec in one.items()
        ],
        "kv_cache_layout": layout.name,
        "workers": told,
        **{key: value for key, value in told[0].items() if key not in ("groups", "tensors")},
        "cache_config_block_size": cache.block_size,
        "scheduler_block_size": scheduler_tokens,
        "hash_block_size": hash_tokens,
        "cache_hit_alignment_tokens": getattr(scheduler, "cache_hit_alignment_tokens", None),
        "max_model_len": config.model_config.max_model_len,
        "kv_cache_size_tokens": cache.kv_cache_size_tokens,
        "max_concurrency": cache.kv_cache_max_concurrency,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "num_speculative_tokens": config.num_speculative_tokens,
        "num_lookahead_tokens": config.num_lookahead_tokens,
        "num_hash_lookahead_tokens": getattr(config, "num_hash_lookahead_tokens", None),
    }


def _layer(spec: Any) -> dict[str, Any]:
    return {
        "block_size": spec.block_size,
        "page_size_bytes": spec.page_size_bytes,
        "real_page_size_bytes": getattr(spec, "real_page_size_bytes", spec.page_size_bytes),
        "block_stride_alignment_bytes": spec.get_block_stride_alignment(),
    }


def _members(group: Any) -> list[Any]:
    own = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return [own[name] if own else group.kv_cache_spec for name in group.layer_names]


def _worker(config: Any, worker: Any, layout: Any) -> dict[str, Any]:
    import vllm.v1.core.kv_cache_utils as utils

    try:
        import vllm.v1.core.kv_cache_planning as planning
    except ImportError:
        planning = utils
    groups = []
    for group in worker.kv_cache_groups:
        spec = group.kv_cache_spec
        needed = spec.max_memory_usage_bytes(config)
        groups.append(
            {
                "layer_names": group.layer_names,
                "block_size": spec.block_size,
                "page_bytes_sum": sum(one.page_size_bytes for one in _members(group)),
                "is_eagle_group": group.is_eagle_group,
                "prefix_cacheable": spec.prefix_cacheable,
                "max_blocks_per_request": -(-needed // spec.page_size_bytes),
            }
        )
    members = [one for group in worker.kv_cache_groups for one in _members(group)]
    tensors = worker.kv_cache_tensors
    return {
        "groups": groups,
        "group_sizes": [len(group["layer_names"]) for group in groups],
        "raw_bytes_per_block": max(group["page_bytes_sum"] for group in groups),
        "block_stride_alignment_lcm": lcm(*(one.get_block_stride_alignment() for one in members)),
        "bytes_per_block": planning._get_kv_cache_bytes_per_block(worker.kv_cache_groups, layout),
        "num_blocks": worker.num_blocks,
        "tensors": [
            {
                "layers": entry.layers,
                "size": entry.size,
                "offset": entry.offset,
                "layer_stride": entry.layer_stride,
                "block_stride": entry.block_stride,
            }
            for entry in tensors
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--src", default="")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="sm90")
    asked = parser.parse_args()
    out, sys.stdout = sys.stdout, sys.stderr
    version = activate(asked.src, asked.gpu)
    for line in sys.stdin:
        try:
            result = answer(json.loads(line), version)
        except Exception as error:
            result = {"vllm_version": version, "error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(result) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
