"use strict";
/* The explorer's page: reads the controls, asks rules.js, shows the answers with figures.js. */

const START = JSON.parse(document.getElementById("start").textContent);
/* Controls: the knobs of the page are layers in all and shares of them; the rules take counts. */
function knobsOf(s) {
  const attention = s.full_layers + s.window_layers;
  const { both, alone } = statePlaces(s);
  return { ...s, layers: attention + alone, parallel: both };
}

function settingsOf(knobs) {
  const { layers, ...s } = knobs;
  s.full_layers = Math.min(s.full_layers, layers);
  s.window_layers = s.attention === "mla" ? 0 : Math.min(s.window_layers, layers - s.full_layers);
  const attention = s.full_layers + s.window_layers;
  s.parallel = Math.min(s.parallel, attention);
  s.state_layers = layers - attention + s.parallel;
  return s;
}

const OWN = knobsOf(START.settings);
let knobs = { ...OWN };
const fields = [...document.querySelectorAll("[data-knob]")];

function setKnob(name, value) {
  if (name === "layers") {
    // The shares stay what they were.
    for (const part of ["full_layers", "window_layers", "parallel"]) {
      knobs[part] = Math.round((knobs[part] / Math.max(knobs.layers, 1)) * value);
    }
  }
  knobs[name] = value;
  // Another kind of state starts from the shapes of a model that has it.
  if (name === "state_kind") Object.assign(knobs, START.states[value]);
  if (name === "full_layers") {
    knobs.window_layers = Math.min(knobs.window_layers, knobs.layers - value);
  } else if (name === "window_layers") {
    knobs.full_layers = Math.min(knobs.full_layers, knobs.layers - value);
  }
  knobs.parallel = Math.min(knobs.parallel, knobs.full_layers + knobs.window_layers);
}

function fieldValue(field) {
  if (field.type === "checkbox") return field.checked;
  if (field.tagName === "SELECT") return field.dataset.number ? Number(field.value) : field.value;
  const steps = field.dataset.steps ? field.dataset.steps.split(",").map(Number) : null;
  const raw = Number(field.value);
  if (field.type === "range" && steps) return steps[raw];
  const whole = Number.isFinite(raw) && field.value !== "" ? Math.round(raw) : OWN[field.dataset.knob];
  return Math.min(Math.max(whole, Number(field.min)), limitOf(field));
}

function limitOf(field) {
  const share = ["full_layers", "window_layers"].includes(field.dataset.knob);
  if (share) return knobs.layers;
  return field.dataset.knob === "parallel" ? knobs.full_layers + knobs.window_layers : Number(field.max);
}

function showField(field) {
  const value = knobs[field.dataset.knob];
  if (field.type === "checkbox") {
    field.checked = value;
  } else if (field.type === "range" && field.dataset.steps) {
    const steps = field.dataset.steps.split(",").map(Number);
    const nearest = steps.reduce((best, n, i) => (Math.abs(n - value) < Math.abs(steps[best] - value) ? i : best), 0);
    field.value = nearest;
    field.setAttribute("aria-valuetext", count(value));
  } else {
    const limit = limitOf(field);
    if (field.type === "range" && Number.isFinite(limit)) field.max = limit;
    if (document.activeElement !== field || Number(field.value) !== value) field.value = value;
    if (field.type === "range") field.setAttribute("aria-valuetext", count(value));
  }
  const hint = byId(`hint-${field.dataset.knob}`);
  if (hint && field.dataset.knob === "full_layers") hint.textContent = shareSentence();
}

function shareSentence() {
  const { alone } = statePlaces(settingsOf(knobs));
  const share = knobs.layers ? (knobs.full_layers + knobs.window_layers) / knobs.layers : 0;
  return `Attention in ${percent(share)} of the layers; ${plural(alone, "layer")} with a state alone`;
}

/* The link: only what differs from the model stands in it. */
function readLink() {
  knobs = { ...OWN };
  const kind = new URLSearchParams(location.hash.slice(1)).get("state_kind");
  if (START.states[kind]) Object.assign(knobs, START.states[kind]);
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const field = fields.find((f) => f.dataset.knob === name && f.type !== "range");
    if (!field) continue;
    if (field.type === "checkbox") {
      knobs[name] = text === "true";
    } else if (field.tagName === "SELECT") {
      if ([...field.options].some((o) => o.value === text)) {
        knobs[name] = field.dataset.number ? Number(text) : text;
      }
    } else if (/^\d{1,9}$/.test(text)) {
      const most = name === "parallel" || name.endsWith("_layers") ? 1e6 : Number(field.max);
      knobs[name] = Math.min(Math.max(Number(text), Number(field.min)), most);
    }
  }
}

function writeLink() {
  const base = { ...OWN, ...START.states[knobs.state_kind], state_kind: OWN.state_kind };
  const changed = fields
    .filter((f) => f.type !== "range" && knobs[f.dataset.knob] !== base[f.dataset.knob])
    .map((f) => [f.dataset.knob, String(knobs[f.dataset.knob])]);
  const wanted = changed.length ? `#${new URLSearchParams(changed)}` : location.pathname;
  history.replaceState(null, "", wanted);
}

function card(name, value, unit, was, data) {
  return make("div", { class: "card" }, make("dt", {}, name),
    make("dd", { "data-answer": data[0], "data-value": String(data[1]) }, value, unit ? make("span", { class: "unit" }, ` ${unit}`) : ""),
    make("dd", { class: "was" }, was));
}

function concurrency(found) {
  return found.num_blocks / found.blocks_per_request;
}

function drawCards(s, found) {
  const was = (now, then, spoken) => (then === undefined || now === then ? "" : `model: ${spoken(then)}`);
  const own = start || {};
  const crossText = (n) => (n === null ? "none" : count(n));
  const fit = found.fits ? concurrency(found).toFixed(2) : "0";
  show("cards",
    card("Crossover", crossText(found.crossover_tokens), found.crossover_tokens === null ? "" : "tokens",
      was(found.crossover_tokens, own.crossover_tokens, crossText), ["crossover_tokens", found.crossover_tokens]),
    card("Block", count(found.aligned_tokens), "tokens", was(found.aligned_tokens, own.aligned_tokens, count), ["block_tokens", found.block_tokens]),
    card("State padding", percent(paddingShare(found)), "", start && paddingShare(found) !== paddingShare(start) ? `model: ${percent(paddingShare(start))}` : "",
      ["padded_state_bytes", found.padded_state_bytes]),
    card(`Requests of ${short(s.context_tokens)}`, fit, `in ${count(s.memory_gib)} GiB`,
      found.fits ? `${plural(found.blocks_per_request, "block")} each of ${count(found.num_blocks)}` : "one does not fit beside the null block", ["kv_tokens", found.kv_tokens]),
  );
}

/* The plan of the same deployment, as long as the architecture is the model's own. */
function drawCommand(s) {
  const flags = { tp: "--tp", drafts: "--drafts", kv_dtype: "--kv-dtype", state_dtype: "--state-dtype", conv_dtype: "--conv-dtype", block_tokens: "--block-size" };
  const deployment = [...Object.keys(flags), "context_tokens", "memory_gib", "batched_tokens", "prefix_caching"];
  const moved = Object.keys(OWN).filter((name) => knobs[name] !== OWN[name] && !deployment.includes(name));
  const plan = ["hybridplan plan", START.command_model, `--kv-memory ${s.memory_gib}GiB`, `--max-model-len ${s.context_tokens}`, `--max-num-batched-tokens ${s.batched_tokens}`];
  for (const [name, flag] of Object.entries(flags)) {
    if (knobs[name] !== START.defaults[name]) plan.push(`${flag} ${knobs[name]}`);
  }
  if (s.drafts && !(s.draft_layers && s.full_layers)) plan.push("--draft-method ngram");
  if (s.prefix_caching !== OWN.prefix_caching) plan.push(s.prefix_caching ? "--prefix-caching" : "--no-prefix-caching");
  const beyond = START.max_tokens && s.context_tokens > START.max_tokens;
  byId("command-note").textContent = moved.length
    ? "The architecture is no longer the model's, so no command plans it; this made the page."
    : START.served && beyond
      ? `The model is made for ${plural(START.max_tokens, "token")}, so the planner refuses this context.`
    : START.served
      ? "The same pool, planned by the command line with everything around it."
      : `vLLM ${START.rules} has no class for this architecture, so the planner refuses it; this made the page.`;
  byId("command").textContent = moved.length || !START.served ? START.command : plan.join(" ");
}

function answerOf(s) {
  return { ...explore(s), aligned_tokens: align(s).block };
}

let start = null;
try {
  start = answerOf(START.settings);
} catch (error) {
  if (!(error instanceof Refusal)) throw error;
}

let speaking = 0;
function update() {
  const s = settingsOf(knobs);
  knobs.full_layers = s.full_layers;
  knobs.window_layers = s.window_layers;
  fields.forEach(showField);
  const refused = byId("refused");
  try {
    const found = answerOf(s);
    refused.hidden = true;
    drawCards(s, found);
    drawMemory(s, found);
    drawBlock(s, found);
    drawGroups(found);
    drawCommand(s);
    const crossing = found.crossover_tokens === null ? "none" : count(found.crossover_tokens);
    byId("dock").textContent = `Crossover ${crossing} · block ${count(found.aligned_tokens)} · padding ${percent(paddingShare(found))} · ${plural(found.groups.length, "group")}`;
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      const cross = found.crossover_tokens === null ? "no crossover" : `crossover at ${plural(found.crossover_tokens, "token")}`;
      byId("spoken").textContent = `${cross}, block of ${plural(found.aligned_tokens, "token")}, state padding ${percent(paddingShare(found))}, ${plural(found.groups.length, "group")}`;
    }, 600);
    byId("answers").dataset.answer = JSON.stringify(found);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    refused.textContent = `Not possible: ${error.message}. The figures below are of the last possible setting.`;
    refused.hidden = false;
    byId("dock").textContent = error.message;
    delete byId("answers").dataset.answer;
  }
}

byId("controls").addEventListener("input", (event) => {
  const field = event.target.closest("[data-knob]");
  if (!field || (field.type === "number" && field.value === "")) return;
  setKnob(field.dataset.knob, fieldValue(field));
  writeLink();
  update();
});
byId("controls").addEventListener("change", (event) => {
  if (event.target.matches("[data-knob]")) update();
});
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("reset").addEventListener("click", () => {
  knobs = { ...OWN };
  writeLink();
  update();
});
byId("copy").addEventListener("click", async () => {
  const button = byId("copy");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 2500);
});
addEventListener("hashchange", () => { readLink(); update(); });
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; update(); }
});
if (matchMedia("(max-width: 1000px)").matches) {
  document.querySelectorAll(".controls > details").forEach((part, index) => { part.open = index === 0; });
}
readLink();
update();
