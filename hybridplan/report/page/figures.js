"use strict";
/* The explorer's figures and tables, in the style of page.css. Numbers come from rules.js. */

const KINDS = { full: "Full attention", window: "Windowed attention", state: "State" };
const STEPS = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const byId = (id) => document.getElementById(id);
const count = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function size(bytes) {
  const step = STEPS.find(([unit]) => bytes >= unit);
  if (!step) return `${count(bytes)} B`;
  const scaled = bytes / step[0];
  const digits = Math.abs(scaled) < 100 ? 2 : 1;
  const fixed = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${scaled.toLocaleString("en-US", fixed)} ${step[1]}`;
}

const percent = (share) => (share ? `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)}%` : "0%");

/* Elements: text is always set as text, so that no name of a model can become markup. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "text", "circle", "title", "defs", "pattern"];
  const element = svg.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const show = (id, ...children) => byId(id).replaceChildren(...children);

const PLOT = { width: 860, height: 360, left: 74, right: 24, top: 24, bottom: 44 };

function plotWidth(id) {
  return Math.max(300, Math.min(PLOT.width, Math.round(byId(id).clientWidth || PLOT.width)));
}

function svg(width, height, label) {
  return make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

function hatch() {
  const line = make("path", { d: "M0 8 8 0", class: "hatch" });
  const size8 = { width: 8, height: 8, patternUnits: "userSpaceOnUse" };
  const pattern = make("pattern", { id: "hatched", ...size8 }, make("rect", { width: 8, height: 8, class: "fill-empty" }), line);
  return make("defs", {}, pattern);
}

const words = (x, y, text, options = {}) => make("text", { x, y, ...options }, text);

const powers = (from, to) => {
  const found = [];
  for (let n = from; n <= to; n *= 2) found.push(n);
  return found;
};

const short = (tokens) => (tokens >= 2 ** 20 ? `${tokens / 2 ** 20}M` : tokens >= 1024 ? `${tokens / 1024}k` : String(tokens));
const shortBytes = (bytes) => size(bytes).replace(/\.0+ /, " ");

function drawMemory(s, found) {
  const width = plotWidth("memory");
  const { height, left, right, top, bottom } = PLOT;
  const least = 64;
  const most = Math.max(2 ** 17, 2 ** Math.ceil(Math.log2(Math.max(s.context_tokens, 2))));
  const samples = [];
  for (let t = least; t <= most; t *= 2 ** 0.125) samples.push(Math.round(t));
  const rows = samples.map((tokens) => ({ tokens, ...requestBytes(s, tokens) }));
  const values = rows.flatMap((row) => [row.hybrid, row.twin]).filter((v) => v);
  const low = 2 ** Math.floor(Math.log2(Math.min(...values)));
  const high = 2 ** Math.ceil(Math.log2(Math.max(...values, low * 2)));
  const x = (t) => left + ((width - left - right) * Math.log2(t / least)) / Math.log2(most / least);
  const y = (b) => height - bottom - ((height - top - bottom) * Math.log2(b / low)) / Math.log2(high / low);
  const picture = svg(width, height, memorySentence(s, found));
  const tickBytes = powers(low, high).filter((_, i, all) => i % Math.ceil(all.length / 7) === 0);
  for (const bytes of tickBytes) {
    picture.append(make("line", { x1: left, x2: width - right, y1: y(bytes), y2: y(bytes), class: "grid" }));
    picture.append(words(left - 10, y(bytes) + 4, shortBytes(bytes), { "text-anchor": "end" }));
  }
  const every = Math.ceil(powers(least, most).length / (width > 600 ? 9 : 5));
  powers(least, most).filter((_, i) => i % every === 0).forEach((tokens) => {
    picture.append(make("line", { x1: x(tokens), x2: x(tokens), y1: height - bottom, y2: height - bottom + 5, class: "axis" }));
    picture.append(words(x(tokens), height - bottom + 20, short(tokens), { "text-anchor": "middle" }));
  });
  picture.append(make("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }));
  picture.append(words(width - right, height - 6, "context, tokens", { "text-anchor": "end" }));
  const path = (name) => rows.filter((r) => r[name]).map((r, i) => `${i ? "L" : "M"}${x(r.tokens).toFixed(1)} ${y(r[name]).toFixed(1)}`).join("");
  if (found.twin_bytes !== null && s.state_layers) picture.append(make("path", { d: path("twin"), class: "curve twin" }));
  picture.append(make("path", { d: path("hybrid"), class: "curve full" }));
  const cross = found.crossover_tokens;
  if (cross && cross >= least && cross <= most) {
    const at = requestBytes(s, cross).hybrid;
    const middle = Math.min(Math.max(x(cross), left + 60), width - right - 60);
    picture.append(make("line", { x1: x(cross), x2: x(cross), y1: top, y2: height - bottom, class: "mark" }));
    picture.append(make("circle", { cx: x(cross), cy: y(at), r: 5, class: "dot" }));
    picture.append(words(middle, top - 6, `crossover ${count(cross)}`, { class: "strong", "text-anchor": "middle" }));
  }
  const here = y(found.hybrid_bytes);
  picture.append(make("circle", { cx: x(Math.max(s.context_tokens, least)), cy: here, r: 5, class: "dot" }));
  show("memory", picture);
  const ladder = powers(1024, most).map((tokens) => {
    const row = requestBytes(s, tokens);
    return [count(tokens), size(row.hybrid), row.twin === null ? "-" : size(row.twin)];
  });
  show("memory-table", table("Bytes of one request on one rank", ["context", "this model", "attention everywhere"], ladder));
  byId("memory-note").textContent = memorySentence(s, found);
  show("memory-legend", legendLine("curve full", "this model"), s.state_layers && found.twin_bytes !== null ? legendLine("curve twin", "the same with attention in every layer") : "");
}

function memorySentence(s, found) {
  const at = `At ${plural(s.context_tokens, "token")} a request holds ${size(found.hybrid_bytes)} on one rank`;
  if (!s.state_layers) return `${at}. No layer holds a state, so the model is its own twin.`;
  if (found.twin_bytes === null) return `${at}. There is no attention to compare with.`;
  const twin = `; with attention in every layer it would hold ${size(found.twin_bytes)}`;
  const cross = found.crossover_tokens === null
    ? " The two never meet."
    : ` The hybrid holds less from ${plural(found.crossover_tokens, "token")} on.`;
  return `${at}${twin}.${cross}`;
}

function drawBlock(s, found) {
  const width = plotWidth("block");
  const bar = 44;
  const state = found.state_bytes && found.token_bytes;
  const height = state ? 2 * bar + 64 : bar + 32;
  const picture = svg(width, height, blockSentence(s, found));
  picture.append(hatch());
  const page = found.block_tokens * found.token_bytes || found.state_bytes;
  const widest = Math.max(page, found.padded_state_bytes, 1);
  const scale = (bytes) => (width * bytes) / widest;
  let y = 20;
  if (state) {
    picture.append(words(0, 13, `a state, ${size(found.state_bytes)}`, { class: "strong" }));
    picture.append(make("rect", { x: 0, y, width: scale(found.state_bytes), height: bar, rx: 3, class: "fill-state" }));
    const empty = found.padded_state_bytes - found.state_bytes;
    if (empty > 0) picture.append(make("rect", { x: scale(found.state_bytes), y, width: Math.max(scale(empty), 1), height: bar, fill: "url(#hatched)" }));
    y += bar + 32;
  }
  if (found.token_bytes) {
    picture.append(words(0, y - 7, `${plural(found.aligned_tokens, "token")} of KV at ${count(found.token_bytes)} B`, { class: "strong" }));
    const tokens = found.aligned_tokens;
    picture.append(make("rect", { x: 0, y, width: scale(tokens * found.token_bytes), height: bar, rx: 3, class: "fill-full" }));
    const step = s.block_tokens || 16;
    const units = tokens / step;
    for (let i = 1; i < units && units <= 100; i += 1) {
      const at = scale(i * step * found.token_bytes);
      picture.append(make("line", { x1: at, x2: at, y1: y, y2: y + bar, class: "seam" }));
    }
  }
  show("block", picture);
  byId("block-note").textContent = blockSentence(s, found);
}

function blockSentence(s, found) {
  if (!found.state_bytes) return `No state has to fit, so a block has the ${plural(found.aligned_tokens, "token")} that the attention backend prefers.`;
  if (!found.token_bytes) return "There is no attention whose page could hold the state, so a page is the state itself.";
  const state = `A state of ${count(found.state_bytes)} B must fit one page of one attention layer`;
  if (!found.raised) return `${state}; ${plural(found.aligned_tokens, "token")} at ${count(found.token_bytes)} B already hold it. Each state page has ${count(found.padded_state_bytes - found.state_bytes)} B of padding.`;
  return `${state}; at ${count(found.token_bytes)} B a token that is ${count(Math.ceil(found.state_bytes / found.token_bytes))} tokens, rounded up to a multiple of ${count(found.granularity_tokens)}: ${plural(found.aligned_tokens, "token")}. Hatched: the ${count(found.padded_state_bytes - found.state_bytes)} B (${percent(paddingShare(found))} of the state) left empty in every state page.`;
}

function merged(groups) {
  const rows = [];
  groups.forEach((group, index) => {
    const last = rows[rows.length - 1];
    if (last && last.kind === group.kind && last.layers === group.layers) last.to = index;
    else rows.push({ ...group, from: index, to: index });
  });
  return rows;
}

function drawGroups(found) {
  const rows = merged(found.groups);
  const width = plotWidth("groups");
  const narrow = width < 560;
  const left = narrow ? 0 : 216;
  const bar = 38;
  const pitch = narrow ? 72 : 54;
  const height = rows.length * pitch + 8;
  const picture = svg(width, height, groupsSentence(found));
  picture.append(hatch());
  const room = width - left;
  const scale = (bytes) => (room * bytes) / found.bytes_per_block;
  rows.forEach((row, index) => {
    const y = index * pitch + (narrow ? 24 : 4);
    const name = row.from === row.to ? `Group ${row.from}` : `Groups ${row.from} to ${row.to}`;
    const holds = `${plural(row.layers, "layer")}, ${KINDS[row.kind].toLowerCase()}`;
    if (narrow) {
      picture.append(words(0, y - 7, `${name}: ${holds.replace(" attention", "")}`, { class: "strong" }));
    } else {
      picture.append(words(0, y + 16, name, { class: "strong" }), words(0, y + 33, holds));
    }
    picture.append(make("rect", { x: left, y, width: room, height: bar, fill: "url(#hatched)" }));
    const page = scale(row.page_bytes);
    const content = scale(row.content_bytes / row.layers);
    for (let layer = 0; layer < row.layers; layer += 1) {
      picture.append(make("rect", { x: left + layer * page, y, width: Math.max(content, 0.5), height: bar, class: `fill-${row.kind}` }));
    }
    for (let layer = 1; layer <= row.layers && page > 5; layer += 1) {
      const at = left + layer * page;
      picture.append(make("line", { x1: at, x2: at, y1: y, y2: y + bar, class: "seam" }));
    }
    picture.append(make("rect", { x: left, y, width: room, height: bar, class: "frame" }));
  });
  show("groups", picture);
  const kinds = [...new Set(rows.map((row) => row.kind))];
  show("groups-legend", ...kinds.map((kind) => legendBox(`fill-${kind}`, KINDS[kind])), legendBox(null, "Empty"));
  byId("groups-note").textContent = groupsSentence(found);
  const body = rows.map((row) => [
    row.from === row.to ? String(row.from) : `${row.from}-${row.to}`, KINDS[row.kind], count(row.layers), count(row.block_tokens),
    `${count(row.page_bytes)} B`, size(row.content_bytes), size(row.padding_bytes), count(row.blocks_per_request),
  ]);
  show("groups-table", table("Per block id; the last column is the blocks that one request takes", ["group", "of", "layers", "tokens a block", "page", "filled", "empty", "a request"], body, 1));
}

function groupsSentence(found) {
  const waste = found.groups.reduce((total, group) => total + group.padding_bytes, 0);
  const share = waste / (found.bytes_per_block * found.groups.length);
  const one = found.groups.length === 1 ? "There is one group, so nothing is padded by grouping" : `Layers are cut into ${found.groups.length} groups that share one pool`;
  return `${one}. A block id stands for ${size(found.bytes_per_block)}; averaged over the groups, ${percent(share)} of it is empty. Bars are drawn to scale, one box a layer.`;
}

function legendLine(className, text) {
  const line = make("path", { d: "M1 6H25", class: className });
  return make("li", {}, make("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, line), text);
}

function legendBox(className, text) {
  const box = make("rect", { width: 26, height: 12, rx: 2, ...(className ? { class: className } : { fill: "url(#hatched)" }) });
  return make("li", {}, make("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, box), text);
}

/* Cells of column ``left`` are words and stand at the left. */
function table(caption, heads, rows, left = null) {
  const look = (i) => (i === left ? "left" : null);
  const head = make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", class: look(i) }, text)));
  const cell = (text, i) => (i ? make("td", { class: look(i) }, text) : make("th", { scope: "row" }, text));
  const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
  const parts = [make("thead", {}, head), make("tbody", {}, ...body)];
  return make("table", {}, ...(caption ? [make("caption", {}, caption)] : []), ...parts);
}

function paddingShare(found) {
  return found.state_bytes && found.padded_state_bytes ? (found.padded_state_bytes - found.state_bytes) / found.state_bytes : 0;
}
