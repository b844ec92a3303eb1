"""Where a decoder layer keeps what, before the block is known: a site per cache vLLM registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from hybridplan.config.spec import (
    Attention,
    CompressedAttention,
    GatedMemoryUnit,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
)
from hybridplan.errors import RefusalError
from hybridplan.ledger.caches import layer_caches
from hybridplan.ledger.conventions import model_dtype
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.dtypes import element_bytes
from hybridplan.ledger.held import LayerCaches, TokenCache
from hybridplan.ledger.sparse import ring_tokens
from hybridplan.ledger.vllm import backends as table
from hybridplan.ledger.vllm import names
from hybridplan.ledger.vllm.backends import Backend
from hybridplan.ledger.vllm.kv_dtype import AUTO, attending, cache_dtype, sparse
from hybridplan.ledger.vllm.options import VllmOptions
from hybridplan.ledger.vllm.page import AttentionCache, CacheMode, LayerCache, MultipleOf
from hybridplan.ledger.vllm.rules import VersionRules
from hybridplan.ledger.vllm.selection import Ask, select
from hybridplan.ledger.vllm.states import checkpoint_alignment, state_cache

# Three rope positions as int64 beside a raw key, counted in bf16 elements.
_POSITION_ELEMENTS = 3 * 4
# Designs whose attention layer names its backend itself.
_OWN_BACKENDS = {"qsa": "QSA_TRITON", "block": "MINIMAX_M3_SPARSE"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Site:
    """A cache before the block is known: pages of one token (or state), and who reads it."""

    name: str
    cache: LayerCache
    backend: Backend | None = None


@dataclass(frozen=True)
class SiteBuilder:
    """Builds the sites of a model on one rank, before the block is known.

    Layers with equal mixers are worked out once.
    """

    spec: ModelSpec
    deployment: Deployment
    options: VllmOptions
    rules: VersionRules
    mode: CacheMode
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def asked_dtype(self) -> str:
        return cache_dtype(self.spec, self.deployment, self.options.generation, self.rules)

    @cached_property
    def cache_dtype(self) -> str:
        """The KV dtype after the first latent's backend narrowed it."""
        for mixer in attending(self.spec.layers):
            if isinstance(mixer, LatentAttention):
                return select(self._ask(mixer))[1]
        return self.asked_dtype

    def sites(self, layer: Layer, part: names.Part = "target") -> list[Site]:
        """The caches of one decoder layer, attention before states, an indexer before its layer."""
        held = self._held(layer)
        found: list[Site] = []
        for mixer in layer.mixers:
            if isinstance(mixer, CompressedAttention):
                raise RefusalError(
                    f"{self.spec.name}: the pool plan of compressed attention (DeepSeek-V4) is not "
                    "modelled; no figure is given"
                )
            if isinstance(mixer, Attention | LatentAttention):
                found += self._attention(layer, mixer, held, part)
        for mixer in layer.mixers:
            if not isinstance(mixer, Attention | LatentAttention | GatedMemoryUnit):
                found.append(self._state(layer, mixer, held, part))
        return found

    def model_token_bytes(self) -> int:
        """Attention page of one token that the hybrid alignment compares states with, in bytes."""
        for layer in self.spec.layers:
            for cache in self._held(layer).tokens:
                if cache.name == "kv":
                    return cache.bytes_per_entry
                if cache.name == "mla":
                    element = 1 if self._quantised else element_bytes(cache.dtype)
                    return cache.key_dim * element
        return 0

    def model_state_bytes(self) -> int:
        """The state that the hybrid alignment sees: the model's, not each layer's."""
        largest = 0
        for mixers in dict.fromkeys(layer.mixers for layer in self.spec.layers):
            for mixer in mixers:
                if isinstance(mixer, Attention | LatentAttention | GatedMemoryUnit):
                    continue
                deployment = self.deployment
                if mixer.kind == "short_conv":
                    deployment = replace(deployment, drafts=0)
                cache = state_cache(
                    mixer,
                    Layer(0, (mixer,), None),
                    self.spec,
                    deployment,
                    self.options,
                    self.rules,
                    model_level=True,
                )
                largest = max(largest, cache.content_bytes)
        return largest

    def checkpoint_lcm(self) -> int | None:
        """Common checkpoint alignment that the layers declare, None if any declares none."""
        return checkpoint_alignment(self.spec, self.options, self.rules)

    def _once(self, key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
        if key not in self.known:
            self.known[key] = make()
        found: _T = self.known[key]
        return found

    def _held(self, layer: Layer) -> LayerCaches:
        return self._once(
            ("held", layer.mixers),
            lambda: layer_caches(layer, self.spec, self._stored_deployment),
        )

    @cached_property
    def _quantised(self) -> bool:
        return self.asked_dtype not in (AUTO, "bfloat16", "float16") or self.cache_dtype.endswith(
            "ds_mla"
        )

    @cached_property
    def _stored_deployment(self) -> Deployment:
        asked = self.cache_dtype
        return replace(self.deployment, kv_dtype=None if asked == AUTO else asked)

    def _ask(self, mixer: Attention | LatentAttention, draft: bool = False) -> Ask:
        latent = isinstance(mixer, LatentAttention)
        spec, options = self.spec, self.options
        return Ask(
            options.generation,
            self.asked_dtype,
            model_dtype(spec, self.deployment),
            mixer.kv_lora_rank + mixer.rope_dim
            if isinstance(mixer, LatentAttention)
            else mixer.key_dim,
            latent=latent,
            sparse=latent and sparse(mixer),
            rope=isinstance(mixer, LatentAttention) and mixer.rope_dim > 0,
            sinks=isinstance(mixer, Attention) and mixer.sinks,
            non_causal=draft and options.draft_method in ("dflash", "dspark"),
            heads=-(-mixer.heads // self.deployment.tp),
            nope_dim=mixer.nope_dim if isinstance(mixer, LatentAttention) else 0,
            block_tokens=options.block_tokens,
            dcp=self.deployment.dcp,
        )

    def _backend(self, mixer: Attention | LatentAttention, part: names.Part) -> Backend:
        return self._once(("backend", mixer, part), lambda: self._chosen_backend(mixer, part))

    def _chosen_backend(self, mixer: Attention | LatentAttention, part: names.Part) -> Backend:
        own = _OWN_BACKENDS.get(mixer.indexer.form) if mixer.indexer else None
        if own is not None:
            return self._with_given_block(table.BACKENDS[own])
        wanted = self.options.attention_backend
        if wanted is not None and ("MLA" in wanted) != isinstance(mixer, LatentAttention):
            wanted = None
        backend, _ = select(self._ask(mixer, part != "target"), wanted)
        smallest = self.options.kernel_block_tokens
        if smallest is not None:
            return replace(backend, kernel_blocks=(MultipleOf(smallest),))
        if backend.name == "FLASHINFER":
            least = self.rules.flashinfer_block_tokens
            blocks = tuple(b for b in backend.kernel_blocks if isinstance(b, int) and b >= least)
            return replace(backend, kernel_blocks=blocks)
        return backend

    def _with_given_block(self, backend: Backend) -> Backend:
        block = self.options.block_tokens
        if block is not None and not backend.accepts(block):
            raise RefusalError(
                f"{backend.name}, the one backend of {self.spec.name}'s sparse layers, takes "
                f"blocks of {backend.smallest_tokens} tokens and multiples, not {block}"
            )
        return backend

    def _attention(
        self, layer: Layer, mixer: Attention | LatentAttention, held: LayerCaches, part: names.Part
    ) -> list[Site]:
        found = []
        for cache in held.tokens:
            if cache.name == "index":
                found += self._indexer(layer, mixer, cache, part)
        for cache in held.tokens:
            if cache.name in ("kv", "mla"):
                name = names.cache_name(self.spec, layer, mixer, part)
                backend = self._backend(mixer, part)
                found.append(Site(name, self._page(cache, mixer, part != "target"), backend))
        return found

    def _page(
        self, cache: TokenCache, mixer: Attention | LatentAttention, draft: bool
    ) -> AttentionCache:
        dtype = "uint8" if self._quantised else cache.dtype
        latent = isinstance(mixer, LatentAttention)
        packed = self.cache_dtype.endswith(("per_token_head", "ds_mla"))
        window = cache.window
        page = AttentionCache(
            kind="mla" if latent else "full",
            block_tokens=1,
            heads=cache.heads,
            key_dim=cache.key_dim,
            value_dim=cache.value_dim,
            dtype=dtype,
            entry_bytes=cache.bytes_per_entry // cache.heads if packed else None,
            cache_dtype=self.cache_dtype if latent else None,
            index_leader=latent and mixer.indexer is not None and mixer.indexer.owned,
            draft=draft,
        )
        if self.cache_dtype == "nvfp4":
            slots = 2 * cache.heads
            page = replace(page, head_slots=slots, entry_bytes=cache.bytes_per_entry // slots)
        if window is None:
            return page
        if window.kind == "chunked":
            return replace(page, kind="chunked", chunk_tokens=window.tokens)
        return replace(page, kind="sliding", window_tokens=window.tokens)

    def _indexer(
        self,
        layer: Layer,
        mixer: Attention | LatentAttention,
        cache: TokenCache,
        part: names.Part,
    ) -> list[Site]:
        indexer = mixer.indexer
        assert indexer is not None
        pooled = indexer.form == "qsa"
        draft = part != "target"
        keys = AttentionCache(
            kind="mla",
            block_tokens=indexer.tokens_per_entry,
            heads=cache.heads,
            key_dim=cache.bytes_per_entry // cache.heads // element_bytes(cache.dtype),
            dtype=cache.dtype,
            tokens_per_entry=Fraction(cache.tokens_per_entry),
            role="indexer",
            draft=draft,
        )
        if pooled:
            backend = table.BACKENDS["QSA_STATE"]
        elif indexer.form == "block":
            backend = table.BACKENDS["MINIMAX_M3_SPARSE_INDEXER"]
        else:
            backend = table.indexer_backend(cache.tokens_per_entry, self.options.generation)
        name = "compressed_key_cache" if pooled else "k_cache"
        found = [Site(names.indexer_name(self.spec, layer, name, part), keys, backend)]
        if not indexer.tail_ring:
            return found
        positions = _POSITION_ELEMENTS if pooled and names.multimodal(self.spec) else 0
        ring = AttentionCache(
            kind="ring",
            block_tokens=ring_tokens(indexer, self.deployment.drafts),
            heads=1 if pooled else 2,
            key_dim=indexer.head_dim + positions,
            dtype="bfloat16",
            dcp_sharded=False,
            draft=draft,
        )
        name = "raw_key_cache" if pooled else "tail_cache"
        waiting = table.BACKENDS["QSA_STATE" if pooled else "KPOOL_TAIL"]
        site = Site(names.indexer_name(self.spec, layer, name, part), ring, waiting)
        return [site, *found] if pooled else [*found, site]

    def _state(self, layer: Layer, mixer: Mixer, held: LayerCaches, part: names.Part) -> Site:
        cache = self._once(
            ("state", mixer, part),
            lambda: replace(
                state_cache(
                    mixer,
                    layer,
                    self.spec,
                    self.deployment,
                    self.options,
                    self.rules,
                    mode=self.mode,
                ),
                draft=part != "target",
            ),
        )
        name = names.cache_name(self.spec, layer, mixer, part)
        return Site(name, cache)
