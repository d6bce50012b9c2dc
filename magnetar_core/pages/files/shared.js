// What the pages of Magnetar share: making elements, words and numbers, tables, plots, drawing what changed, asking.
// Texts of the cluster (names of topics and bookies, reasons) are only ever set as text, never as markup.

const AUTHORIZATION = "magnetar.authorization"; // kept for this tab only, and sent in a header, never in an address

export const byId = (id) => document.getElementById(id);

const isThere = (child) => child !== null && child !== undefined && child !== "";

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(isThere));
  return made;
}

function makeSvg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------------------------------- words and numbers

export const count = (number) => Number(number).toLocaleString("en");
export const of = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;

// A number of things a second: whole where it is large, with its first digits where it is small.
export const rate = (number) => (number && number < 10 ? count(Number(number.toPrecision(2))) : count(Math.round(number)));

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${number < 10 && unit > 0 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

let clockGapMs = 0; // the server's wall clock minus this machine's
const serverNow = () => Date.now() + clockGapMs;
export function followClock(nowMs) { clockGapMs = nowMs - Date.now(); }

// A span that counts on without being drawn again.
export const since = (wallMs, after = "") =>
  wallMs ? make("span", { "data-since": wallMs, "data-after": after }, span((serverNow() - wallMs) / 1000) + after) : "unknown";

export function countOn() {
  for (const one of document.querySelectorAll("[data-since]")) {
    one.textContent = span((serverNow() - Number(one.dataset.since)) / 1000) + one.dataset.after;
  }
}

// ---------------------------------------------------------------------------------------- parts of a page

export const pill = (text, kind) => make("span", { class: `pill ${kind}` }, text);
export const note = (text) => make("p", { class: "note" }, text);
export const card = (value, text, isSmall) =>
  make("li", {}, make("b", { class: isSmall ? "small" : null }, value), make("span", {}, text));

export function table(names, rows) {
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((cells) =>
    make("tr", {}, ...cells.map((cell, at) =>
      make("td", { "data-name": names[at], class: cell ? null : "empty" }, cell || ""))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

// Where *values* has numbers: [index of the first, the numbers], for each run of them.
function runsOf(values) {
  const runs = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || values[index - 1] === null) runs.push([index, []]);
    runs[runs.length - 1][1].push(value);
  });
  return runs;
}

// Lines over the time of *timesMs*: each {name, values}; null: nobody knows, which is a gap. *text* stands above, *what*
// is read aloud, *shown* makes the texts of the numbers at the axis.
export function plot(timesMs, lines, text, what, shown) {
  const most = Math.max(...lines.flatMap((line) => line.values), 0);
  const at = (index) => (index / Math.max(timesMs.length - 1, 1)) * 600;
  const high = (value) => 98 - (most ? value / most : 0) * 94;
  const grid = [4, 51, 98].map((y) => makeSvg("line", { x1: 0, x2: 600, y1: y, y2: y, class: "grid" }));
  const curves = lines.flatMap((line, number) => {
    const runs = runsOf(line.values).map(([first, values]) => {
      const points = values.map((value, index) => `${at(first + index).toFixed(1)},${high(value).toFixed(1)}`).join(" ");
      return [points, at(first).toFixed(1), at(first + values.length - 1).toFixed(1)];
    });
    const curve = runs.map(([points]) => makeSvg("polyline", { points, class: `curve curve-${number}` }));
    const areas = runs.map(([points, from, to]) => makeSvg("polygon", { points: `${from},98 ${points} ${to},98`, class: "area" }));
    return number ? curve : [...areas, ...curve];
  });
  const title = makeSvg("title", {});
  title.textContent = what;
  const drawn = makeSvg("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img" }, title, ...grid, ...curves);
  const clock = (wallMs) => new Date(wallMs).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const keys = lines.length < 2 ? [] : lines.map((line, number) => make("span", { class: `key key-${number}` }, line.name));
  return make("div", { class: "plot" },
    make("p", { class: "note" }, text, ...keys),
    make("div", { class: "scaled" }, drawn,
      make("div", { class: "scale" }, ...[most, most / 2, 0].map((value) => make("span", {}, shown(value))))),
    make("div", { class: "axis" }, make("span", {}, clock(timesMs[0])),
      make("span", {}, clock(timesMs[Math.floor(timesMs.length / 2)])), make("span", {}, "now")));
}

// ---------------------------------------------------------------------------------------- drawing what changed

const drawnFrom = new Map(); // part → what it was drawn from

export function draw(id, facts, makeParts) {
  const text = JSON.stringify(facts);
  if (drawnFrom.get(id) === text) return;
  drawnFrom.set(id, text);
  const place = byId(id).querySelector("div") || byId(id);
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  place.replaceChildren(...[makeParts()].flat().filter(isThere));
  for (const one of place.querySelectorAll("details")) one.open = open.has(one.dataset.key);
}

// ---------------------------------------------------------------------------------------- asking

export class Refused extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}

let answeredMs = 0;

function live(text, isLost) {
  byId("live").textContent = text;
  byId("live").classList.toggle("lost", isLost);
  document.body.classList.toggle("stale", isLost);
}

// What *path* answers; shows the form for those who are to say who they are. Throws Refused, or that nothing answers.
export async function askFor(path) {
  const shown = sessionStorage.getItem(AUTHORIZATION);
  const headers = shown ? { Authorization: shown } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
  const told = await answer.json().catch(() => ({}));
  byId("leave").hidden = !shown;
  if (answer.status === 401 && answer.headers.has("WWW-Authenticate")) { // else it is known who asks, and may not
    byId("token").hidden = false;
    for (const [id, method] of [["by-token", "token"], ["by-password", "basic"]]) {
      if (byId(id) && told.methods) byId(id).hidden = !told.methods.includes(method);
    }
    throw new Refused(401, shown ? "who you said you are is not known here" : "say who you are");
  }
  byId("token").hidden = true;
  if (!answer.ok) throw new Refused(answer.status, told.reason || `status ${answer.status}`);
  return told;
}

// Call *ask* every *everyMs*, and again when `again` is called or a person said who it is.
export function goOn(ask, everyMs) {
  let timer = 0;
  let turn = 0;
  async function again() {
    clearTimeout(timer);
    turn += 1;
    const mine = turn; // an older answer that comes late changes nothing
    try {
      await ask(() => mine === turn);
      if (mine !== turn) return;
      answeredMs = Date.now();
      live(`live, ${new Date(answeredMs).toLocaleTimeString()}`, false);
    } catch (error) {
      if (mine !== turn) return;
      const when = answeredMs ? `, what you see is of ${new Date(answeredMs).toLocaleTimeString()}` : "";
      live(`no answer: ${error.message}${when}`, true);
      countOn();
    }
    timer = setTimeout(again, everyMs);
  }

  function use(authorization) {
    if (authorization) sessionStorage.setItem(AUTHORIZATION, authorization);
    else sessionStorage.removeItem(AUTHORIZATION);
    location.reload(); // nothing that another caller saw stays on the page
  }

  byId("token").addEventListener("submit", (event) => {
    event.preventDefault();
    const [token, name, password] = ["token-text", "name-text", "password-text"].map((id) => (byId(id) ? byId(id).value : ""));
    if (token.trim()) return use(`Bearer ${token.trim()}`);
    const pair = new TextEncoder().encode(`${name}:${password}`);
    return use(`Basic ${btoa(String.fromCharCode(...pair))}`);
  });
  byId("leave").addEventListener("click", () => use(""));
  again();
  return again;
}
