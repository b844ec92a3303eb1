"""A model on one rank as a function from a step's work to counts, in whole numbers.

Everything but routed experts is linear in what a step holds; those are read as often as tokens
choose them, taken as independent and even (``distinct_share``). A step of n equal decode passes
is a closed form: contexts grow by one, so their sum is an arithmetic series, capped where
attention has a window. tests/ledger/work compares it with a count token by token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from hybridplan.config.spec import Layer, ModelSpec
from hybridplan.ledger.caches import draft_caches, model_caches
from hybridplan.ledger.deployment import Deployment
from hybridplan.ledger.held import LayerCaches
from hybridplan.ledger.weights.storage import Storage
from hybridplan.ledger.work import calls
from hybridplan.ledger.work.features import Counts
from hybridplan.ledger.work.layer import Tally
from hybridplan.ledger.work.positions import FULL, Reach
from hybridplan.ledger.work.shapes import CHUNK_TOKENS
from hybridplan.ledger.work.step import StepWork

_SHARE_BITS = 48


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Counts of a step's parts on one rank. All are whole numbers.

    Attributes:
        once: of a pass: weights read, launches that every pass has.
        row: of a token of any kind.
        head_row: of a token whose logits are needed.
        decode_once, decode_row: of passes that decode, and of a token decoded or verified.
        chunk_once, chunk_row, chunk_request: of passes with prefill chunks, a token, a chunk.
        state_bytes, window_bytes: a request's recurrent states, and its other fixed tensors.
        chunk_scan_flop: of every 64 tokens of a chunk, begun ones whole.
        read_bytes: of a key that attention reads, by how far back it looks.
        pair_flop: of a (query, key) pair of a chunk, by how far back it looks.
        before_flop: dense FLOP of a key before a chunk (MLA expands cached latents again).
        experts: bytes of all routed experts, by (experts, experts a token).
        notes: sentences on what is derived and what is left out.
        draft: the checkpoint's MTP layers and the head, where drafts are made; None without.
        stages: pipeline stages whose layers are added up here.
    """

    once: Counts
    row: Counts
    head_row: Counts
    decode_once: Counts
    decode_row: Counts
    chunk_once: Counts
    chunk_row: Counts
    chunk_request: Counts
    state_bytes: int
    window_bytes: int
    chunk_scan_flop: int
    before_flop: int
    read_bytes: Mapping[Reach, int]
    pair_flop: Mapping[Reach, int]
    experts: Mapping[tuple[int, int], int]
    notes: tuple[str, ...]
    draft: WorkModel | None = None
    stages: int = 1

    def uses(self, feature: str) -> bool:
        """Whether any step of the model counts that feature."""
        if self.draft is not None and self.draft.uses(feature):
            return True
        if feature == "attention_flop":
            return bool(self.pair_flop)
        return feature != "scan_flop" or self.chunk_scan_flop > 0

    def counts(self, work: StepWork) -> Counts:
        """Counts of a pass, or of its repeats together, and of the drafts proposed after it."""
        if work.empty:
            return Counts()
        counts = self._pass(work)
        if self.draft is not None and work.proposed:
            counts = counts.plus(self.draft.proposing(work))
        return counts

    def proposing(self, work: StepWork) -> Counts:
        """What a draft model counts after ``work``: a pass over its rows, then one token of each
        request with logits at a time. It is no step of its own. Of chunks only the number that end
        their prompt is known; the first ones are taken."""
        verified = sum(tokens for _, tokens in work.windows)
        whole = work.chunks[: max(0, work.head_rows - len(work.contexts) - verified)]
        ends = [*work.contexts, *(start + tokens for start, tokens in (*work.windows, *whole))]
        first = StepWork(work.contexts, work.chunks, work.windows, head_rows=len(ends))
        counts = self._pass(first)
        if ends and work.proposed > 1:
            longer = [end + 1 for end in ends]
            again = StepWork(longer, head_rows=len(ends), repeats=work.proposed - 1)
            counts = counts.plus(self._pass(again))
        return counts._replace(step=0)

    def _pass(self, work: StepWork) -> Counts:
        contexts, times = work.contexts, work.repeats
        decodes = len(contexts)
        verified = sum(tokens for _, tokens in work.windows)
        chunked = sum(tokens for _, tokens in work.chunks)
        rows = decodes + verified + chunked
        fixed = 2 * (self.state_bytes + self.window_bytes)
        launches = self.once.launches
        moved = self.once.bytes + rows * self.row.bytes + work.head_rows * self.head_row.bytes
        moved += work.copied_bytes + decodes * fixed
        dense = rows * self.row.dense_flop + work.head_rows * self.head_row.dense_flop
        for (experts, topk), size in self.experts.items():
            moved += size * distinct_share(experts, topk, rows) >> _SHARE_BITS
        attention = scan = 0
        if decodes or verified:
            launches += self.decode_once.launches
            moved += (decodes + verified) * self.decode_row.bytes
        for _, tokens in work.windows:
            moved += (tokens + 1) * self.state_bytes + 2 * self.window_bytes
        if work.chunks:
            launches += self.chunk_once.launches + len(work.chunks) * self.chunk_request.launches
            moved += chunked * self.chunk_row.bytes + len(work.chunks) * fixed
            scan = self.chunk_scan_flop * sum(-(-t // CHUNK_TOKENS) for _, t in work.chunks)
            dense += self.before_flop * sum(start for start, _ in work.chunks)
            for reach, flop in self.pair_flop.items():
                attention += flop * sum(reach.pairs(start, n) for start, n in work.chunks)
        moved = moved * times + self._read(work)
        return Counts(times, launches * times, moved, dense * times, attention, scan)

    def prefix(self, tokens: int) -> Counts:
        """What the first ``tokens`` of a prompt add to the steps that compute them: rows, pairs and
        chunks of the recurrence. Weights, experts and launches are left out, as steps share them.
        """
        attention = sum(flop * reach.pairs(0, tokens) for reach, flop in self.pair_flop.items())
        return Counts(
            bytes=tokens * (self.row.bytes + self.chunk_row.bytes),
            dense_flop=tokens * self.row.dense_flop,
            attention_flop=attention,
            scan_flop=self.chunk_scan_flop * -(-tokens // CHUNK_TOKENS),
        )

    def _read(self, work: StepWork) -> int:
        """Bytes of KV that attention reads, in all repeats."""
        contexts, times = work.contexts, work.repeats
        total = 0
        for reach, size in self.read_bytes.items():
            if reach == FULL:
                keys = times * sum(contexts) + len(contexts) * times * (times - 1) // 2
            else:
                keys = sum(reach.read(context, times) for context in contexts)
            for start, tokens in work.windows:
                keys += reach.read(start + tokens)
            for start, _ in work.chunks:
                keys += reach.before(start)
            total += size * keys
        return total


@lru_cache(maxsize=1 << 14)
def distinct_share(experts: int, topk: int, rows: int) -> int:
    """Share of the experts that ``rows`` tokens meet, in 2**-48: 1 - (1 - topk/experts)**rows.

    The expected value where every token picks ``topk`` of them evenly and on its own. Computed in
    whole numbers, so that it is the same on every machine.
    """
    one = 1 << _SHARE_BITS
    base, missed = (experts - topk) * one // experts, one
    left = rows
    while left:
        if left & 1:
            missed = missed * base >> _SHARE_BITS
        base = base * base >> _SHARE_BITS
        left >>= 1
    return one - missed


def work_model(spec: ModelSpec, deployment: Deployment) -> WorkModel:
    """What a step of the model costs on one rank.

    Pipeline stages run one after another, so their layers add up. With drafts the checkpoint's MTP
    layers propose them. Raises what the ledger raises for sizes that do not divide over the ranks.
    """
    caches = model_caches(spec, deployment)
    model = _stack(spec, deployment, spec.layers, caches, caches)
    draft = None
    if deployment.drafts and spec.draft_layers:
        draft = _stack(spec, deployment, spec.draft_layers, draft_caches(spec, deployment), caches)
    notes = _notes(spec, deployment, model, draft)
    return replace(model, notes=notes, draft=draft, stages=deployment.pp)


def _stack(
    spec: ModelSpec,
    deployment: Deployment,
    layers: Sequence[Layer],
    caches: Sequence[LayerCaches],
    main: Sequence[LayerCaches],
) -> WorkModel:
    """Layers and the output head. ``main`` are the caches that a layer without its own reads."""
    tally = Tally(spec, deployment)
    for layer, own in zip(layers, caches, strict=True):
        tally.add(layer, own, own if own.reads_layer is None else main[own.reads_layer])
    head_bytes = ceil(
        spec.hidden_size * spec.vocab_size * Storage(spec).head_bits() / 8 / deployment.tp
    )
    width = -(-spec.vocab_size // deployment.tp)
    head = calls.product(spec.hidden_size, width, 0, head_bytes)
    return WorkModel(
        once=tally.once.plus(head),
        row=tally.row,
        head_row=calls.product(spec.hidden_size, width, 1, head_bytes).less(head),
        decode_once=tally.decode_once,
        decode_row=tally.decode_row,
        chunk_once=tally.chunk_once,
        chunk_row=tally.chunk_row,
        chunk_request=tally.chunk_request,
        state_bytes=tally.state_bytes,
        window_bytes=tally.window_bytes,
        chunk_scan_flop=tally.chunk_scan_flop,
        before_flop=tally.before_flop,
        read_bytes={reach: int(rate) for reach, rate in tally.read_bytes.items()},
        pair_flop={reach: int(rate) for reach, rate in tally.pair_flop.items()},
        experts=dict(tally.experts),
        notes=(),
    )


def _notes(
    spec: ModelSpec, deployment: Deployment, model: WorkModel, draft: WorkModel | None
) -> tuple[str, ...]:
    notes = ["norms, rotary embedding, residual additions and sampling take no time of their own"]
    if model.experts:
        notes.append(
            "experts read in a step: the expected number, every token choosing evenly and alone"
        )
    if deployment.tp > 1:
        notes.append(f"tp {deployment.tp} divides the work evenly; its all-reduces take no time")
    if deployment.pp > 1:
        notes.append(f"the {deployment.pp} pipeline stages run one after another, not overlapped")
    if deployment.drafts and deployment.engine == "vllm":
        notes.append(
            "drafts are proposed by the checkpoint's MTP layers and the head, a pass for each"
            if draft is not None
            else f"{spec.name} carries no MTP layers, so proposing drafts takes no time"
        )
    return tuple(notes)
