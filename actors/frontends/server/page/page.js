// The page at `/`. Everything that an agent or a server says goes through textContent.
"use strict";

const $ = (id) => document.getElementById(id);
const TIERS = ["active", "hot", "warm", "cold"];
const ROLES = ["system", "user", "assistant", "tool"];
const SECONDS = 60, LANES = 6, LANE = 16, LEFT = 130;
const shown = { agents: [], chosen: null, turns: [], stream: null, connected: false };

// -- small things ---------------------------------------------------------------------------

function element(tag, text, ...classes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  made.classList.add(...classes.filter(Boolean));
  return made;
}

function button(text, label, action) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

const count = (n) => (n ?? null) === null ? "–" : Math.round(n).toLocaleString("en");

function size(n) {
  if ((n ?? null) === null) return "–";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return `${unit && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

function ago(at) {
  if (!at) return "not stored";
  const s = Math.max(0, Date.now() / 1000 - at);
  if (s < 60) return "now";
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

let noticed = 0;
function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = false;
  clearTimeout(noticed);
  noticed = setTimeout(() => { $("notice").hidden = true; }, 8000);
}

// -- the server -----------------------------------------------------------------------------

async function call(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem("key");
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.json !== undefined) {
    headers["content-type"] = "application/json";
    options = { ...options, body: JSON.stringify(options.json) };
  }
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) await askKey();
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    throw new Error(said?.error?.message ?? `${answer.status} ${answer.statusText}`);
  }
  return answer;
}

const one = (id, rest = "") => `/agents/${encodeURIComponent(id)}${rest}`;

// Events of a stream, as [name, content]; fetch, since EventSource sends neither keys nor bodies.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        if (line.startsWith("data:")) data += line.slice(5);
      }
      if (data) yield [name, JSON.parse(data)];
    }
  }
}

let asking = null;
async function askKey() {
  asking ??= ask("An API key is needed", "It stays in this tab.", "use it",
    [["key", "API key", "password"]]).finally(() => { asking = null; });
  const given = await asking;
  if (!given) return;
  // What is no header would never reach the server, which asks for another one.
  if (!/^[\x21-\x7e]+$/.test(given.key.trim())) { notice("that is no API key"); return; }
  sessionStorage.setItem("key", given.key.trim());
  location.reload();
}

// -- what is asked before something is done ---------------------------------------------------

function ask(title, text, yes, fields = [], danger = false) {
  const dialog = $("ask"), inputs = {};
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-yes").textContent = yes;
  $("ask-yes").classList.toggle("danger", danger);
  $("ask-fields").replaceChildren(...fields.map(([name, label, kind, value]) => {
    const row = element("label", label), input = element(kind === "area" ? "textarea" : "input");
    if (kind !== "area") input.type = kind;
    if (value) input.value = value;
    row.append(input);
    inputs[name] = input;
    return row;
  }));
  dialog.showModal();
  if (danger) $("ask-no").focus();
  return new Promise((resolve) => {
    let given = null;
    $("ask-form").onsubmit = (event) => {
      event.preventDefault();
      given = Object.fromEntries(Object.entries(inputs).map(([k, input]) => [k, input.value]));
      dialog.close();
    };
    $("ask-no").onclick = () => dialog.close();
    dialog.addEventListener("close", () => resolve(given), { once: true });
  });
}

// -- agents by tier ---------------------------------------------------------------------------

let due = null;
function refreshSoon() {
  due ??= setTimeout(() => { due = null; refresh(); }, 250);
}

async function refresh() {
  try {
    const q = encodeURIComponent($("filter").value);
    const list = await (await call(`/agents?q=${q}`)).json();
    // By id, since rows that move under the pointer cannot be read.
    const sorted = list.agents.sort((a, b) => (a.id < b.id ? -1 : 1));
    shown.agents = TIERS.flatMap((tier) => sorted.filter((agent) => agent.tier === tier));
    $("agents-title").textContent = `agents ${count(list.total)}`;
    drawAgents(list.tiers);
    const chosen = shown.agents.find((agent) => agent.id === shown.chosen);
    if (chosen) drawFacts(chosen);
  } catch (error) {
    if (shown.connected) notice(error.message);
  }
}

// Each element is made once, by its name: what is under the pointer stays there.
const made = new Map();
function once(name, make) {
  if (!made.has(name)) made.set(name, make());
  return made.get(name);
}

function drawAgents(tiers) {
  const rows = [];
  let tier = null;
  for (const agent of shown.agents) {
    if (agent.tier !== tier) {
      tier = agent.tier;
      const group = once(`tier ${tier}`, () => tierRow(agent.tier));
      group.lastElementChild.textContent = count(tiers[tier]);
      rows.push(group);
    }
    const row = once(`agent ${agent.id}`, () => agentRow(agent.id));
    drawRow(row, agent);
    rows.push(row);
  }
  if (!rows.length) rows.push(once("none", () => element("div", "none yet", "group")));
  const there = [...$("agents").children];
  if (rows.length !== there.length || rows.some((row, i) => row !== there[i])) {
    $("agents").replaceChildren(...rows);
  }
  markChosen();
}

function tierRow(tier) {
  const group = element("div", null, "group");
  group.setAttribute("role", "presentation");
  group.append(element("span", tier), element("span", "", "num"));
  return group;
}

function agentRow(id) {
  const row = element("div", null, "row");
  row.id = `agent-${encodeURIComponent(id)}`;
  row.setAttribute("role", "option");
  row.dataset.id = id;
  row.append(element("i"), element("b", id), element("span", "", "num"));
  row.addEventListener("click", () => choose(id));
  return row;
}

function drawRow(row, agent) {
  row.title = agent.problem ?? `${agent.id}, ${ago(agent.last_used)}`;
  row.firstElementChild.className = agent.tier;
  const bytes = agent.memory_bytes || agent.disk_bytes;
  row.lastElementChild.textContent = `${count(agent.tokens)} tok · ${size(bytes)}`;
}

function markChosen() {
  for (const row of $("agents").querySelectorAll(".row")) {
    const mine = row.dataset.id === shown.chosen;
    row.setAttribute("aria-selected", String(mine));
    if (mine) {
      $("agents").setAttribute("aria-activedescendant", row.id);
      row.scrollIntoView({ block: "nearest" });
    }
  }
}

function step(by) {
  const place = shown.agents.findIndex((agent) => agent.id === shown.chosen);
  const next = shown.agents[Math.min(shown.agents.length - 1, Math.max(0, place + by))];
  if (next) choose(next.id);
}

// -- one agent --------------------------------------------------------------------------------

async function choose(id) {
  if (id !== shown.chosen) clearTranscript();
  shown.chosen = id;
  markChosen();
  $("agent-title").textContent = id;
  $("actions").hidden = $("chat").hidden = false;
  await drawTranscript();
}

function clearTranscript() {
  shown.told = null;
  $("transcript").replaceChildren();
  $("extent").replaceChildren();
}

function unchoose() {
  shown.chosen = null;
  clearTranscript();
  $("agent-title").textContent = "no agent chosen";
  $("actions").hidden = $("chat").hidden = $("tier").hidden = true;
  $("facts").textContent = "";
}

function drawFacts(agent) {
  $("tier").hidden = false;
  $("tier").textContent = agent.tier;
  $("tier").className = `tier ${agent.tier}`;
  $("facts").textContent = `${count(agent.turns)} turns, ${count(agent.tokens)} tokens: ` +
    `${count(agent.memory_tokens)} in memory, ${count(agent.disk_tokens)} on disk, ${ago(agent.last_used)}`;
}

async function drawTranscript() {
  const id = shown.chosen, streams = () => shown.stream?.rows[0].isConnected;
  if (!id || streams()) return;
  try {
    const [told, detail] = await Promise.all(
      [call(one(id, "/transcript")), call(one(id))].map(async (answer) => (await answer).json()));
    if (id !== shown.chosen || streams()) return;
    drawFacts(detail.agent);
    const text = JSON.stringify(told);
    if (text === shown.told) return;
    shown.told = text;
    const rows = told.turns.map((turn, index) => turnRow(id, turn, index, told.turns.length));
    if (told.system_prompt) rows.unshift(said("system", told.system_prompt, ""));
    if (shown.stream?.id === id) rows.push(...shown.stream.rows);
    $("transcript").replaceChildren(...rows);
    $("extent").replaceChildren(...told.turns.map((turn) => {
      const part = element("i", null, turn.tier);
      part.style.flexGrow = turn.tokens;
      return part;
    }));
    $("transcript").scrollTop = $("transcript").scrollHeight;
  } catch (error) {
    if (shown.connected) notice(error.message);
  }
}

function said(role, text, tier, facts) {
  const row = element("li", null, ROLES.includes(role) && role);
  const who = element("div", role, "who");
  if (facts) who.append(element("small", facts));
  row.append(element("i", null, tier), who, element("div", text, "said"));
  return row;
}

function turnRow(id, turn, index, all) {
  const ended = turn.finish && turn.finish !== "stop" ? `, ${turn.finish}` : "";
  const row = said(turn.role, turn.text, turn.tier, `${turn.tier}, ${count(turn.tokens)} tok${ended}`);
  const acts = element("div", null, "acts"), keep = index + 1;
  acts.append(button("fork here", `Fork behind turn ${keep}`, () => fork(id, keep)));
  if (keep < all) acts.append(button("rewind to here", `Rewind to turn ${keep}`, () => rewind(id, keep, all)));
  row.append(acts);
  return row;
}

async function fork(id, keep) {
  const what = keep ? `the first ${keep} turns of ${id}` : `all that ${id} remembers`;
  const given = await ask("Fork", `A new agent begins with ${what}, without a copy.`, "fork",
    [["id", "id (empty: a new one)", "text"]]);
  if (!given) return;
  const json = { id: given.id || null, at: keep ?? null };
  await attempt(async () => {
    const made = await (await call(one(id, "/fork"), { method: "POST", json })).json();
    await refresh();
    await choose(made.agent.id);
  });
}

async function rewind(id, keep, all) {
  const text = `${id} forgets its last ${all - keep} turns. This cannot be undone.`;
  if (!await ask("Rewind", text, "rewind", [], true)) return;
  await attempt(async () => {
    await call(one(id, "/rewind"), { method: "POST", json: { keep } });
    await drawTranscript();
    await refresh();
  });
}

async function forget() {
  const id = shown.chosen;
  const text = `${id} is deleted from memory and disk. This cannot be undone.`;
  if (!await ask("Forget", text, "forget", [], true)) return;
  await attempt(async () => {
    await call(one(id), { method: "DELETE" });
    unchoose();
    await refresh();
  });
}

async function exportAgent() {
  const id = shown.chosen;
  await attempt(async () => {
    const link = element("a");
    link.href = URL.createObjectURL(await (await call(one(id, "/export"))).blob());
    link.download = `${id}.kvagent`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });
}

async function create() {
  const given = await ask("New agent", "It is stored from its first turn on.", "make it",
    [["id", "id (empty: a new one)", "text"], ["system", "system prompt", "area"]]);
  if (!given) return;
  const json = { id: given.id || null, system_prompt: given.system || null };
  await attempt(async () => {
    const made = await (await call("/agents", { method: "POST", json })).json();
    await refresh();
    await choose(made.agent.id);
    $("prompt").focus();
  });
}

async function attempt(work) {
  try { await work(); } catch (error) { notice(error.message); }
}

// -- chat -------------------------------------------------------------------------------------

async function send() {
  const id = shown.chosen, prompt = $("prompt").value;
  if (!id || !prompt.trim() || shown.stream) return;
  const stop = new AbortController();
  const mine = said("user", prompt, "cold"), answer = said("assistant", "", "active", "…");
  $("transcript").append(mine, answer);
  $("prompt").value = "";
  shown.stream = { id, stop, rows: [mine, answer] };
  shown.told = null;
  $("send").textContent = "stop";
  const json = {
    prompt, stream: true, max_tokens: Number($("max").value), temperature: Number($("temperature").value),
  };
  try {
    const reply = await call(one(id, "/turns"), { method: "POST", json, signal: stop.signal });
    for await (const [name, content] of events(reply)) {
      if (name === "text") answer.querySelector(".said").append(content.text);
      if (name === "error") throw new Error(content.error.message);
      if (shown.chosen === id) $("transcript").scrollTop = $("transcript").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") { notice(error.message); $("prompt").value ||= prompt; }
  }
  shown.stream = null;
  $("send").textContent = "send";
  await drawTranscript();
  refreshSoon();
}

// -- the system, live -------------------------------------------------------------------------

const rates = [];
let before = null;

function drawSnapshot(now) {
  const { stats, health } = now;
  $("model").textContent = `${now.model} on ${now.device.replace(/^Device\((\w+).*$/, "$1")}`;
  $("state").textContent = health.error ? `${health.state}: ${health.error}` : health.state;
  $("state").className = `pill ${health.state === "ok" ? "ok" : "bad"}`;
  $("unsaved").textContent = size(health.unsaved_bytes);
  const running = now.turns.filter((turn) => turn.phase === "prefill" || turn.phase === "decode");
  $("running").textContent = count(running.length);
  $("waiting").textContent = count(now.turns.length - running.length);
  // A snapshot may be older than the event that ended a turn: what it alone knows goes with it.
  const named = new Set(now.turns.map((turn) => turn.agent_id));
  shown.turns = shown.turns.filter((turn) => turn.serial !== null || named.has(turn.agent));
  for (const turn of now.turns) note(turn.agent_id, turn.phase);
  if (stats) drawStats(now, stats);
}

function drawStats(now, stats) {
  const budget = Math.max(1, stats.budget_bytes);
  const parts = { active: stats.active_bytes, hot: stats.hot_bytes, backlog: stats.backlog_bytes };
  const used = Object.values(parts).reduce((sum, part) => sum + part, 0);
  for (const [name, part] of Object.entries(parts)) {
    $("memory").querySelector(`.${name}`).style.width = `${(100 * part) / budget}%`;
  }
  $("memory").setAttribute("aria-valuenow", String(Math.round((100 * used) / budget)));
  const inside = `${count(stats.active_agents)} active, ${count(stats.hot_agents)} hot`;
  $("memory-text").textContent = `${size(used)} of ${size(stats.budget_bytes)}: ${inside}; ` +
    `${count(stats.warm_agents)} warm, ${count(stats.cold_agents)} cold`;
  $("disk").textContent = size(stats.disk_bytes);
  $("shared").textContent = count(stats.shared_tokens);
  if (before?.stats && now.at > before.at && now.pid === before.pid) {
    const rate = (name) => Math.max(0, stats[name] - before.stats[name]) / (now.at - before.at);
    $("generated").textContent = count(rate("generated_tokens"));
    $("prefilled").textContent = count(rate("prefilled_tokens"));
    rates.push(rate("generated_tokens"));
    if (rates.length > SECONDS) rates.shift();
    const most = Math.max(1, ...rates);
    const path = rates.map((value, i) => `${(i * 120) / SECONDS} ${24 - (22 * value) / most}`);
    $("spark").firstElementChild.setAttribute("d", `M${path.join("L")}`);
  }
  before = now;
}

// Turns of the last minute: {agent, serial, phases: [[name, begun]...], ended, failed}.
function running(agent) {
  return shown.turns.findLast((turn) => turn.agent === agent && !turn.ended && !turn.save);
}

function note(agent, phase) {
  const turn = running(agent), now = Date.now() / 1000;
  const justEnded = shown.turns.some((one) => one.agent === agent && !one.save && one.ended > now - 2);
  if (turn && turn.phases.at(-1)[0] !== phase) turn.phases.push([phase, now]);
  if (!turn && !justEnded) shown.turns.push({ agent, serial: null, phases: [[phase, now]] });
}

function drawEvent(name, told) {
  const agent = told.agent_id, turn = running(agent);
  if (name === "queued") {
    shown.turns.push({ agent, serial: told.serial, phases: [["queued", told.at]] });
  } else if (name === "started" && turn) {
    turn.phases.push(["prefill", told.at]);
  } else if (name === "ended") {
    const same = shown.turns.find((one) => one.agent === agent && one.serial === told.serial) ?? turn;
    if (same) end(same, told);
  } else if (name === "saved") {
    shown.turns.push({ agent, save: true, ended: told.at, phases: [["save", told.at]] });
  } else if (name === "fault") {
    notice(`${told.where}: ${told.error}`);
  }
  if (name !== "queued") refreshSoon();
  if (agent === shown.chosen && (name === "ended" || name === "saved" || name === "evicted")) {
    drawTranscript();
  }
}

// What a turn took is known exactly once it has ended.
function end(turn, told) {
  const { timing } = told;
  turn.ended = told.at;
  if (told.failed) { turn.phases = [["failed", turn.phases[0][1]]]; return; }
  if (timing.total === undefined) return;
  const begun = told.at - timing.total;
  turn.phases = [["queued", begun], ["prefill", begun + timing.queued + timing.restore],
    ["decode", begun + timing.first_token]];
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function drawLanes() {
  const now = Date.now() / 1000, width = $("lanes").clientWidth, parts = [];
  const recent = shown.turns = shown.turns.filter((turn) => !turn.ended || turn.ended > now - SECONDS);
  const x = (at) => LEFT + (width - LEFT - 16) * Math.max(0, 1 - (now - at) / SECONDS);
  const agents = [...new Set([...recent].reverse().map((turn) => turn.agent))].slice(0, LANES).sort();
  for (let back = 0; back <= SECONDS; back += 10) {
    const at = x(now - back);
    parts.push(svg("line", { x1: at, x2: at, y1: 0, y2: LANES * LANE + 2 }));
    parts.push(svg("text", { x: at, y: LANES * LANE + 15, "text-anchor": "end" }, back ? `-${back} s` : "now"));
  }
  for (const [lane, agent] of agents.entries()) {
    const name = agent.length > 16 ? `${agent.slice(0, 15)}…` : agent;
    parts.push(svg("text", { x: 16, y: lane * LANE + 13 }, name));
    for (const turn of recent.filter((turn) => turn.agent === agent)) {
      turn.phases.forEach(([phase, begun], i) => {
        const until = turn.phases[i + 1]?.[1] ?? turn.ended ?? now;
        const wide = turn.save ? 2 : Math.max(1.5, x(until) - x(begun));
        const high = turn.save ? 14 : 10;
        parts.push(svg("rect", { x: x(begun), y: lane * LANE + 2 + (14 - high) / 2, width: wide, height: high, class: phase }));
      });
    }
  }
  $("lanes").replaceChildren(...parts);
}

async function listen() {
  for (let pause = 250; ; pause = Math.min(4000, pause * 2)) {
    try {
      const answer = await call("/events");
      shown.connected = true;
      pause = 250;
      await refresh();
      await drawTranscript();
      for await (const [name, told] of events(answer)) {
        if (name === "snapshot") drawSnapshot(told); else drawEvent(name, told);
      }
    } catch { /* It comes again below. */ }
    shown.connected = false;
    before = null;
    // How they ended nobody says any more.
    shown.turns = shown.turns.filter((turn) => turn.ended);
    $("state").textContent = "not connected, trying again";
    $("state").className = "pill bad";
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// -- hands ------------------------------------------------------------------------------------

function onKey(event) {
  if (event.key === "Escape" && shown.stream) shown.stream.stop.abort();
  if (event.target.matches("input, textarea") || $("ask").open || event.ctrlKey || event.metaKey) return;
  const keys = {
    "/": () => $("filter").focus(), n: create, c: () => $("prompt").focus(),
    ArrowDown: () => step(1), ArrowUp: () => step(-1),
  };
  if ($("transcript").contains(event.target) && event.key.startsWith("Arrow")) return;
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
}

document.addEventListener("keydown", onKey);
$("filter").addEventListener("input", refreshSoon);
$("new").addEventListener("click", create);
$("fork").addEventListener("click", () => fork(shown.chosen, null));
$("forget").addEventListener("click", forget);
$("export").addEventListener("click", exportAgent);
$("chat").addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown.stream) shown.stream.stop.abort(); else send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
setInterval(drawLanes, 500);
listen();
