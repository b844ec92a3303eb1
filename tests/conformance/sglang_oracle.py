"""Drive SGLang's real hybrid radix cache on a CPU and record what it does.

The classes under test are SGLang's own, imported from an unpacked wheel (0.5.23): UnifiedRadixCache
with the FULL and MAMBA components, HybridReqToTokenPool, MambaPool, MambaSlotAllocator, the token
and paged KV allocators, Req, checkpoint_kv_cache, release_kv_cache, and ScheduleBatch's prefill
tracking rule. This file only plays the scheduler loop: one request per batch, in trace order.
Nothing of SGLang is copied here.

Setting it up (CPython 3.11, no GPU): a CPU build of torch 2.13, transformers 5.19, and the other
packages SGLang imports; then `pip download sglang==0.5.23 --no-deps` and unpack the wheel. Do not
install torchvision: it is replaced by an empty module.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
import types
from array import array

from hybridplan.sim.sglang.events import operations


def _stub(name: str, **attrs) -> None:
    mod = types.ModuleType(name)
    mod.__path__ = []
    mod.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    for k, v in attrs.items():
        setattr(mod, k, v)
    sys.modules[name] = mod
    if "." in name:
        parent, child = name.rsplit(".", 1)
        setattr(sys.modules[parent], child, mod)


def bootstrap(src: str) -> None:
    sys.path.insert(0, src)
    os.environ.setdefault("SGLANG_RUST_BUILD_MODE", "never")
    import transformers  # noqa: F401  imported first: it must see no torchvision

    class InterpolationMode:
        BICUBIC = "bicubic"
        BILINEAR = "bilinear"
        NEAREST = "nearest"
        LANCZOS = "lanczos"

    if importlib.util.find_spec("torchvision") is None:
        _stub("torchvision")
        for sub in (
            "transforms",
            "transforms.functional",
            "transforms.v2",
            "transforms.v2.functional",
        ):
            _stub(f"torchvision.{sub}", InterpolationMode=InterpolationMode)


DEFAULTS = {
    "strategy": "no_buffer",  # no_buffer | extra_buffer | extra_buffer_lazy
    "page_size": 1,
    "chunk_size": 64,  # mamba_cache_chunk_size before max() with page
    "track_interval": 256,
    "kv_tokens": 4096,  # KV pool capacity in tokens
    "mamba_slots": 32,  # max_mamba_cache_size (slot 0 is extra)
    "max_num_reqs": 16,
    "chunked_prefill_size": None,  # tokens, None = whole prompt in one extend
    "max_states_per_path": -1,
    "overlap": True,  # 2 ping-pong slots when True, else 1
    "skip_decode_lock": False,
    "eviction_policy": "lru",
}


class Oracle:
    def __init__(self, config: dict, backend: str):
        cfg = {**DEFAULTS, **config}
        unknown = set(config) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"unknown config keys: {sorted(unknown)}")
        if cfg["strategy"] == "no_buffer":
            assert cfg["page_size"] == 1
        self.cfg = cfg
        self._build(cfg, backend)
        self.live: dict = {}
        self.evicted = {"full_tokens": 0, "states": 0, "calls": 0}

    def _build(self, cfg, backend):
        import torch
        from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
        from sglang.srt.environ import envs
        from sglang.srt.mem_cache.allocator import (
            PagedTokenToKVPoolAllocator,
            TokenToKVPoolAllocator,
        )
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import (
            HybridLinearKVPool,
            HybridReqToTokenPool,
        )
        from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
        from sglang.srt.runtime_context import get_exec
        from sglang.srt.server_args import (
            ServerArgs,
            set_global_server_args_for_scheduler,
        )

        envs.SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK.set(cfg["skip_decode_lock"])
        extra = cfg["strategy"] != "no_buffer"
        args = ServerArgs(
            model_path="dummy",
            page_size=cfg["page_size"],
            mamba_radix_cache_strategy=cfg["strategy"],
            mamba_track_interval=cfg["track_interval"],
            mamba_max_states_per_path=cfg["max_states_per_path"],
            disable_overlap_schedule=not cfg["overlap"] or not extra,
        )
        args._mamba_cache_chunk_size = max(cfg["chunk_size"], cfg["page_size"])
        set_global_server_args_for_scheduler(args)
        assert get_exec().mamba.enable_mamba_extra_buffer == extra

        self.state_layers, self.full_layers = [0, 1, 2], [3]
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=16,
            n_groups=1,
            num_heads=2,
            head_dim=8,
            state_size=8,
            conv_kernel=4,
        )
        self.pool = HybridReqToTokenPool(
            size=cfg["max_num_reqs"],
            mamba_size=cfg["mamba_slots"],
            mamba_spec_state_size=cfg["max_num_reqs"],
            max_context_len=max(cfg["kv_tokens"], 64) + 64,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=self.state_layers),
            mamba_layer_ids=self.state_layers,
            enable_mamba_extra_buffer=extra,
            enable_mamba_extra_buffer_lazy=cfg["strategy"] == "extra_buffer_lazy",
            enable_overlap_schedule=cfg["overlap"],
        )
        kv = HybridLinearKVPool(
            size=cfg["kv_tokens"],
            dtype=torch.bfloat16,
            page_size=cfg["page_size"],
            head_num=1,
            head_dim=8,
            full_attention_layer_ids=self.full_layers,
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=self.pool.mamba_pool,
        )
        kw = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": kv, "need_sort": False}
        if cfg["page_size"] == 1:
            self.alloc = TokenToKVPoolAllocator(cfg["kv_tokens"], **kw)
        else:
            self.alloc = PagedTokenToKVPoolAllocator(
                cfg["kv_tokens"], page_size=cfg["page_size"], **kw
            )
            self.alloc.use_triton_kernels = False  # the CPU path
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=self.alloc,
                page_size=cfg["page_size"],
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                enable_mamba_extra_buffer=extra,
                enable_mamba_extra_buffer_lazy=cfg["strategy"] == "extra_buffer_lazy",
                eviction_policy=cfg["eviction_policy"],
                tree_core_backend=backend,
            )
        )
        assert self.tree._tree_core_backend == backend, self.tree._tree_core_backend
        self.backend = backend
        inner = self.tree._evict

        def counted(*a, **k):
            res = inner(*a, **k)
            self.evicted["full_tokens"] += res.num_tokens_evicted
            self.evicted["states"] += res.mamba_num_evicted
            self.evicted["calls"] += 1
            return res

        self.tree._evict = counted
        self.extra = extra
        self.lazy = cfg["strategy"] == "extra_buffer_lazy"

    def start(self, rid: str, tokens: list) -> dict:
        """Match, lock, allocate, prefill (in chunks) and checkpoint."""
        from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
        from sglang.srt.mem_cache.allocation import alloc_req_slots
        from sglang.srt.mem_cache.common import checkpoint_kv_cache
        from sglang.srt.sampling.sampling_params import SamplingParams

        req = Req(
            rid=rid,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=1),
        )
        before = dict(self.evicted)
        req.init_next_round_input(self.tree)
        n = len(tokens)
        hit = req.prefix_len
        branching = req.mamba_branching_seqlen
        cow = req.kv.mamba_cow_src_index is not None
        req.lock = self.tree.lock(req.last_node)
        step = self.cfg["chunked_prefill_size"] or n
        tracked = []
        first = True
        while True:
            if not first:
                req.init_next_round_input()
            left = n - req.prefix_len
            size = min(step, left)
            if size < left:
                page = self.cfg["page_size"]
                end = (req.prefix_len + size // page * page) // page * page
                size = end - req.prefix_len
                assert size > 0
            req.extend_end = req.prefix_len + size
            prefix_idx = (
                self.pool.req_to_token[req.kv.req_pool_idx, : req.prefix_len].long()
                if req.kv.holds_kv
                else (self.tree.prefix_device_indices(req) if req.prefix_len else None)
            )
            alloc_req_slots(self.pool, [req], self.tree)
            self._extend_kv(req, prefix_idx)
            req.kv.mamba_cow_src_index = None  # the deferred copy runs here
            req.kv.mamba_needs_clear = False
            req.kv.kv_allocated_len = req.kv.kv_committed_len = req.extend_end
            if self.extra:
                view = types.SimpleNamespace(
                    model_config=types.SimpleNamespace(
                        hf_text_config=types.SimpleNamespace(
                            mamba_chunk_size=self.cfg["chunk_size"]
                        )
                    ),
                    tree_cache=self.tree,
                    req_to_token_pool=self.pool,
                )
                entry = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(view, req)
                tracked.append(req.kv.mamba_last_track_seqlen if entry.track_mask else None)
            first = False
            if req.extend_end == n:
                req.output_ids.append(-1)  # sampled by this extend
                checkpoint_kv_cache(req, self.tree)
                break
            checkpoint_kv_cache(req, self.tree)
        self.live[rid] = req
        return {
            "op": "start",
            "rid": rid,
            "input_len": n,
            "hit": hit,
            "branching_seqlen": branching,
            "cow": cow,
            "tracked": tracked,
            "evicted_states": self.evicted["states"] - before["states"],
            "evicted_kv_tokens": self.evicted["full_tokens"] - before["full_tokens"],
        }

    def _extend_kv(self, req, prefix_idx):
        import torch
        from sglang.srt.mem_cache.allocation import (
            alloc_paged_token_slots_extend,
            alloc_token_slots,
        )

        lo, hi = req.prefix_len, req.extend_end
        if self.cfg["page_size"] == 1:
            loc = alloc_token_slots(self.tree, hi - lo)
        else:
            last = prefix_idx[-1:] if lo else torch.full((1,), -1)
            t = lambda v: torch.tensor([v], dtype=torch.int64)  # noqa: E731
            loc = alloc_paged_token_slots_extend(
                self.tree, t(lo), t(lo), t(hi), t(hi), last.long(), hi - lo
            )
        row = self.pool.req_to_token[req.kv.req_pool_idx]
        if lo:
            row[:lo] = prefix_idx.to(row.dtype)
        row[lo:hi] = loc.to(row.dtype)

    def decode(self, rid: str, tokens: list) -> dict:
        """Append output tokens; the last one of a request never gets KV."""
        import torch
        from sglang.srt.mem_cache.allocation import (
            alloc_paged_token_slots_decode,
            alloc_token_slots,
        )
        from sglang.srt.runtime_context import mamba_track_grid

        req = self.live[rid]
        before = dict(self.evicted)
        tracked = []
        grid = mamba_track_grid(self.tree.page_size) if self.extra else None
        for tok in tokens:
            if req.output_ids[-1] == -1 and len(req.output_ids) == 1:
                req.output_ids[0] = tok  # the token the prefill sampled
                continue
            cur = req.kv.kv_committed_len
            row = self.pool.req_to_token[req.kv.req_pool_idx]
            if self.cfg["page_size"] == 1:
                loc = alloc_token_slots(self.tree, 1)
            else:
                t = lambda v: torch.tensor([v], dtype=torch.int64)  # noqa: E731
                loc = alloc_paged_token_slots_decode(
                    self.tree, t(cur + 1), t(cur + 1), row[cur - 1 : cur].long()
                )
            row[cur : cur + 1] = loc.to(row.dtype)
            req.kv.kv_allocated_len += 1
            req.kv.kv_committed_len += 1
            req.output_ids.append(tok)
            if self.extra and (cur + 1) % grid == 0:
                self._track_decode(req, cur + 1)
                tracked.append(cur + 1)
        return {
            "op": "decode",
            "rid": rid,
            "committed": req.kv.kv_committed_len,
            "tracked": tracked,
            "evicted_states": self.evicted["states"] - before["states"],
            "evicted_kv_tokens": self.evicted["full_tokens"] - before["full_tokens"],
        }

    def _track_decode(self, req, seqlen):
        """One state snapshot into the ping-pong buffer at a decode boundary,
        with no overlapped step in flight (batch_result_processor's rule)."""
        kv = req.kv
        if self.lazy:
            other = 1 - kv.mamba_next_track_idx
            slot = self.pool.mamba_allocator.alloc(1)  # never evicts for this
            if slot is None:
                kv.mamba_last_track_seqlen = seqlen  # written in place
                return
            keep = kv.mamba_next_track_idx
            self.pool.set_mamba_ping_pong_slot(req, other, slot[0])
            self.pool.mamba_allocator.free(kv.mamba_ping_pong_track_buffer[keep].unsqueeze(0))
            self.pool.set_mamba_ping_pong_slot(req, keep, -1)
            kv.mamba_next_track_idx = kv.mamba_last_track_idx = other
            kv.mamba_last_track_seqlen = seqlen
            return
        kv.mamba_last_track_idx = kv.mamba_next_track_idx
        kv.mamba_prev_track_seqlen = kv.mamba_last_track_seqlen
        kv.mamba_last_track_seqlen = seqlen
        kv.mamba_next_track_idx = self.pool.get_mamba_ping_pong_other_idx(kv.mamba_next_track_idx)

    def finish(self, rid: str) -> dict:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        req = self.live.pop(rid)
        before = dict(self.evicted)
        req.finished_reason = FINISH_LENGTH(length=len(req.output_ids))
        release_kv_cache(req, self.tree, checkpoint=True)
        return {
            "op": "finish",
            "rid": rid,
            "evicted_states": self.evicted["states"] - before["states"],
            "evicted_kv_tokens": self.evicted["full_tokens"] - before["full_tokens"],
        }

    def totals(self) -> dict:
        t = self.tree
        return {
            "kv_free": int(self.alloc.available_size()),
            "kv_evictable": int(t.full_evictable_size()),
            "kv_protected": int(t.full_protected_size()),
            "state_slots_free": int(self.pool.mamba_allocator.available_size()),
            "states_evictable": int(t.mamba_evictable_size()),
            "states_protected": int(t.mamba_protected_size()),
        }

    def nodes(self):
        """Every tree node: where it ends, its own length, whether it holds a
        state. Only the Python core can be walked; Rust returns None."""
        core = self.tree.tree_core
        if self.backend != "python":
            return None
        from sglang.srt.mem_cache.unified_cache.components.base import ComponentType

        out, stack = [], [(core.root_node, ())]
        while stack:
            node, path = stack.pop()
            for child in node.children.values():
                key = path + tuple(child.key.raw_token_ids())
                stack.append((child, key))
                mamba = child.component_data[ComponentType.MAMBA]
                full = child.component_data[ComponentType.FULL]
                out.append(
                    {
                        "end": len(key),
                        "len": len(child.key),
                        "prefix": prefix_id(key),
                        "state": mamba.value is not None,
                        "locks": [full.lock_ref, mamba.lock_ref],
                    }
                )
        return sorted(out, key=lambda d: (d["end"], d["prefix"]))

    def mamba_lru(self):
        """State-holding nodes from most to least recently used."""
        if self.backend != "python":
            return None
        from sglang.srt.mem_cache.unified_cache.components.base import ComponentType

        lru = self.tree.tree_core.lru_lists[ComponentType.MAMBA]
        out, node = [], lru.head.lru_next[lru._pt]
        while node is not lru.tail:
            key, cur = (), node
            while cur.parent is not None:
                key = tuple(cur.key.raw_token_ids()) + key
                cur = cur.parent
            out.append(prefix_id(key))
            node = node.lru_next[lru._pt]
        return out


def prefix_id(tokens) -> str:
    return hashlib.sha1(",".join(map(str, tokens)).encode()).hexdigest()[:12]


def run_events(trace: dict, backend: str, nodes: bool = True) -> list[dict]:
    """Run a scripted trace; every event with its answer and totals, and with ``nodes`` (Python
    core only) every node and the state order."""
    oracle = Oracle(trace.get("config", {}), backend)
    events = []
    for operation, request_id, tokens in operations(trace):
        run = getattr(oracle, operation)
        record = run(request_id) if operation == "finish" else run(request_id, tokens)
        record["totals"] = oracle.totals()
        if nodes:
            record["nodes"], record["mamba_lru"] = oracle.nodes(), oracle.mamba_lru()
        events.append(record)
    if not oracle.live:  # SGLang's own invariant check needs an idle tree
        oracle.tree.sanity_check()
    return events
