"use strict";
/* vLLM 0.33's rules for hybrid pools on SM 9.0, as in hybridplan/ledger: state page, alignment,
   page unification, grouping, bytes of a block, blocks of a request, crossover. Names follow the
   Python; the tests compare the two on random settings. Whole numbers stay below 2^53. */

const GIB = 2 ** 30;
const ELEMENT_BYTES = { float32: 4, bfloat16: 2, float16: 2, fp8: 1 };
const PER_TOKEN_HEAD = {
  int8_per_token_head: 1,
  fp8_per_token_head: 1,
  int4_per_token_head: 2,
};

class Refusal extends Error {}

const ceilDiv = (a, b) => Math.ceil(a / b);
const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const lcm = (a, b) => (a / gcd(a, b)) * b;
const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);

function split(count, ranks, what) {
  if (count % ranks) {
    throw new Refusal(`TP ${ranks} does not divide the ${count} ${what}`);
  }
  return count / ranks;
}

function kvHeadsPerRank(heads, tp) {
  if (heads >= tp) return split(heads, tp, "KV heads");
  if (tp % heads) throw new Refusal(`TP ${tp} is not a multiple of the ${heads} KV heads`);
  return 1;
}

/* Bytes of K and V of one head and token: kv_formats.head_bytes. */
function headBytes(keyDim, valueDim, dtype) {
  const perByte = PER_TOKEN_HEAD[dtype];
  if (perByte) return Math.floor(keyDim / perByte) + Math.floor(valueDim / perByte) + 8;
  return (keyDim + valueDim) * ELEMENT_BYTES[dtype];
}

/* Bytes one token takes in one layer of a kind, on one rank. */
function tokenBytes(s, kind) {
  if (kind === "full" && s.attention === "mla") {
    if (PER_TOKEN_HEAD[s.kv_dtype]) {
      throw new Refusal(`KV dtype ${s.kv_dtype} needs K and V heads, and this is an MLA latent`);
    }
    split(s.query_heads, s.tp, "attention heads");
    return s.key_dim * ELEMENT_BYTES[s.kv_dtype];
  }
  split(s.query_heads, s.tp, "attention heads");
  const window = kind === "window";
  const heads = kvHeadsPerRank(window ? s.window_kv_heads : s.kv_heads, s.tp);
  const keyDim = window ? s.window_key_dim : s.key_dim;
  const valueDim = window ? s.window_value_dim : s.value_dim;
  return heads * headBytes(keyDim, valueDim, s.kv_dtype);
}

/* Bytes of one layer's state on one rank; columns of the convolution widen with drafts. */
function stateBytes(s, drafts) {
  const { tp } = s;
  const kind = s.state_kind;
  let elements = 0;
  let channels = 0;
  if (kind === "gdn") {
    const keyHeads = split(s.state_key_heads, tp, "key heads of the states");
    const heads = split(s.state_heads, tp, "heads of the states");
    elements = heads * s.state_key_dim * s.state_value_dim;
    channels = 2 * keyHeads * s.state_key_dim + heads * s.state_value_dim;
  } else if (kind === "kda" || kind === "lightning") {
    const heads = split(s.state_heads, tp, "heads of the states");
    elements = heads * s.state_key_dim * s.state_key_dim;
    channels = kind === "kda" ? 3 * heads * s.state_key_dim : 0;
  } else if (kind === "mamba2") {
    if (s.state_key_heads % tp && s.state_key_heads !== 1) {
      throw new Refusal(`TP ${tp} does not divide the ${s.state_key_heads} Mamba-2 groups`);
    }
    const heads = split(s.state_heads, tp, "heads of the states");
    const groups = s.state_key_heads % tp ? 1 : s.state_key_heads / tp;
    elements = heads * s.state_value_dim * s.state_key_dim;
    channels = heads * s.state_value_dim;
    if (s.conv_over_groups) channels += 2 * groups * s.state_key_dim;
  } else if (kind === "mamba1") {
    channels = split(s.state_heads, tp, "inner channels of the states");
    elements = channels * s.state_key_dim;
  } else if (kind === "short_conv") {
    channels = split(s.state_heads, tp, "channels of the short convolutions");
  } else {
    elements = split(s.state_heads, tp, "state elements");
    channels = split(s.conv_channels, tp, "convolution channels");
  }
  const columns = s.conv_kernel - 1 + (kind === "mamba1" ? 0 : drafts);
  const convolution = channels ? columns * channels * ELEMENT_BYTES[s.conv_dtype] : 0;
  const stateDtype = kind === "kda" ? "float32" : s.state_dtype;
  return elements * ELEMENT_BYTES[stateDtype] + convolution;
}

/* Kernel block of the attention backend vLLM picks on SM 9.0. 64 is the one size its kernel reads
   (FlashMLA, and FlashAttention 4 for fp8 heads 512 wide); 16 stands for any multiple. */
function kernelTokens(s, kind) {
  if (kind === "full" && s.attention === "mla") {
    const served = s.kv_dtype === "fp8" && [320, 512, 576].includes(s.key_dim);
    return served && s.block_tokens % 64 === 0 ? 64 : 16;
  }
  const width = kind === "window" ? s.window_key_dim : s.key_dim;
  return width === 512 && s.kv_dtype === "fp8" ? 64 : 16;
}

const cacheMode = (s) => (s.prefix_caching && s.state_layers > 0 ? "align" : "none");

/* The block of the pool: attention pages as large as a state, states padded to match. */
function align(s) {
  const attending = kindsInOrder(s).filter((kind) => kind !== "state");
  const first = attending[0];
  const kernels = attending.map((kind) => kernelTokens(s, kind));
  const shared = kernels.reduce(lcm, 16);
  const start = s.block_tokens || shared;
  const token = first ? tokenBytes(s, first) : 0;
  // The alignment sees a short convolution without its drafts.
  const seen = s.state_kind === "short_conv" ? 0 : s.drafts;
  const state = s.state_layers > 0 ? stateBytes(s, seen) : 0;
  if (!state || !first) {
    return { block: start, granularity: 1, token, state, padded: state, raised: false };
  }
  let granularity = Math.max(kernels[0], start);
  if (s.attention === "mla" && s.full_layers > 0) granularity = Math.max(granularity, 128);
  if (cacheMode(s) === "align" && s.state_kind === "gdn" && s.flashinfer_states) {
    granularity = lcm(granularity, 64);
  }
  let block = granularity * ceilDiv(state, granularity * token);
  block = Math.max(start, ceilDiv(block, shared) * shared);
  return { block, granularity, token, state, padded: block * token, raised: block > start };
}

function layersOf(s, kind) {
  if (kind === "full") return s.full_layers && s.full_layers + (s.drafts > 0 ? s.draft_layers : 0);
  return kind === "window" ? s.window_layers : s.state_layers;
}

/* Layers that hold attention and a state, and those with a state alone. */
function statePlaces(s) {
  const both = Math.min(s.parallel, s.state_layers, s.full_layers + s.window_layers);
  return { both, alone: s.state_layers - both };
}

/* Kinds as the model registers them; in one layer attention comes before the state. */
function kindsInOrder(s) {
  const { both, alone } = statePlaces(s);
  const found = s.order.flatMap((kind) => {
    if (kind === "state") return alone ? [kind] : [];
    if (!layersOf(s, kind)) return [];
    return both ? [kind, "state"] : [kind];
  });
  return [...new Set(found)];
}

/* One cache per kind of layer, before pages are made equal. */
function caches(s, aligned) {
  const attends = s.full_layers + s.window_layers > 0;
  return kindsInOrder(s).map((kind) => {
    const layers = layersOf(s, kind);
    if (kind !== "state") {
      const fixed = kind === "window" && kernelTokens(s, kind) === 64;
      const block = fixed ? 64 : aligned.block;
      const content = block * tokenBytes(s, kind);
      return { kind, layers, block, content, page: content };
    }
    const content = stateBytes(s, s.drafts);
    // The engine sets no padded size where the state it aligned filled the page exactly.
    const padded = attends && aligned.padded !== aligned.state;
    const page = padded ? aligned.padded : content;
    if (page !== content && page < content) {
      throw new Refusal(
        `a state page of ${page} bytes cannot hold a state of ${content} bytes with drafts`,
      );
    }
    const block =
      cacheMode(s) === "align" ? aligned.block : s.context_tokens;
    return { kind, layers, block, content, page };
  });
}

/* Every cache at the widest page: states are padded, attention takes longer blocks or padding. */
function unifyPages(s, found) {
  const widest = Math.max(...found.map((cache) => cache.page));
  return found.map((cache) => {
    if (cache.page === widest || cache.kind === "state") return { ...cache, page: widest };
    if (widest % cache.page === 0) {
      const times = widest / cache.page;
      const block = cache.block * times;
      return { ...cache, block, content: cache.content * times, page: widest };
    }
    if (cache.kind === "full" && s.attention === "mla") {
      throw new Refusal(`an MLA page of ${cache.page} bytes does not divide ${widest} bytes`);
    }
    return { ...cache, page: widest };
  });
}

/* The smallest bucket, unless the largest is less than 1.5 times as large: then the largest. */
function groupWidth(sizes) {
  const least = Math.min(...sizes);
  const most = Math.max(...sizes);
  return 2 * most < 3 * least ? most : least;
}

function groupLayers(s, found) {
  if (found.length === 1) return found.map((cache) => ({ ...cache, slots: cache.layers }));
  const equal = unifyPages(s, found);
  const width = groupWidth(equal.map((cache) => cache.layers));
  return equal.flatMap((cache) => {
    const count = ceilDiv(cache.layers, width);
    return Array.from({ length: count }, (_, first) => ({
      ...cache,
      layers: ceilDiv(cache.layers - first, count),
      slots: width,
    }));
  });
}

function checkpointBlocks(s) {
  if (s.state_kind === "gdn") return s.flashinfer_states ? 1 : 0;
  if (s.state_kind === "mamba2") return 1;
  const flash = s.state_kind === "kda" && s.bounded_gate && s.model_dtype === "bfloat16";
  return flash && s.state_key_dim === 128 ? 1 : 0;
}

function blocksPerRequest(s, group) {
  const tokens = s.context_tokens;
  if (group.kind === "full") return ceilDiv(tokens, group.block);
  if (group.kind === "window") {
    const modules = s.full_layers ? s.draft_layers : 0;
    const ahead = s.drafts > 0 && Math.min(modules, s.drafts) > 1 ? s.drafts - 1 : 0;
    const kept = s.window_tokens - 1 + ahead + 2 * s.batched_tokens;
    return ceilDiv(Math.min(kept, tokens), group.block) + 1;
  }
  return cacheMode(s) === "align" ? 2 + s.drafts + checkpointBlocks(s) : 1 + s.drafts;
}

const heldTokens = (s, kind, tokens) => (kind === "window" ? Math.min(tokens, s.window_tokens) : tokens);

/* Bytes of one request of some tokens, hybrid and all-attention twin, pages left out. */
function requestBytes(s, tokens) {
  const kv = sum(
    ["full", "window"].map((kind) => {
      const layers = kind === "full" ? s.full_layers : s.window_layers;
      return layers ? layers * tokenBytes(s, kind) * heldTokens(s, kind, tokens) : 0;
    }),
  );
  const state = s.state_layers ? s.state_layers * stateBytes(s, s.drafts) : 0;
  const kind = twinKind(s);
  const added = kind ? statePlaces(s).alone * tokenBytes(s, kind) * heldTokens(s, kind, tokens) : 0;
  return { hybrid: kv + state, twin: kind ? kv + added : null };
}

const twinKind = (s) => (s.full_layers ? "full" : s.window_layers ? "window" : null);

/* Shortest context at which the hybrid holds no more than its twin; null where there is none. */
function crossover(s) {
  const kind = twinKind(s);
  if (!kind || !s.state_layers) return null;
  const state = s.state_layers * stateBytes(s, s.drafts);
  const rate = statePlaces(s).alone * tokenBytes(s, kind);
  if (!rate) return state ? null : 0;
  const tokens = ceilDiv(state, rate);
  return kind === "window" && tokens > s.window_tokens ? null : tokens;
}

/* Everything the page shows, or a Refusal with the engine's reason. */
function explore(s) {
  const aligned = align(s);
  const found = caches(s, aligned);
  if (!found.length) throw new Refusal("the model keeps no cache, so there is nothing to plan");
  const groups = groupLayers(s, found);
  const bytesPerBlock = Math.max(...groups.map((group) => group.layers * group.page));
  const lines = groups.map((group) => ({
    kind: group.kind,
    layers: group.layers,
    slots: group.slots,
    block_tokens: group.block,
    page_bytes: group.page,
    content_bytes: group.layers * group.content,
    padding_bytes: bytesPerBlock - group.layers * group.content,
    blocks_per_request: blocksPerRequest(s, group),
  }));
  const perRequest = sum(lines.map((line) => line.blocks_per_request));
  const numBlocks = Math.floor((s.memory_gib * GIB) / bytesPerBlock);
  const bytes = requestBytes(s, s.context_tokens);
  const fits = perRequest <= numBlocks - 1;
  return {
    block_tokens: Math.min(...lines.map((line) => line.block_tokens)),
    granularity_tokens: aligned.granularity,
    raised: aligned.raised,
    token_bytes: aligned.token,
    state_bytes: aligned.state,
    padded_state_bytes: aligned.padded,
    bytes_per_block: bytesPerBlock,
    num_blocks: numBlocks,
    blocks_per_request: perRequest,
    fits,
    kv_tokens: fits ? Math.trunc((numBlocks / perRequest) * s.context_tokens) : 0,
    groups: lines,
    crossover_tokens: crossover(s),
    hybrid_bytes: bytes.hybrid,
    twin_bytes: bytes.twin,
  };
}
