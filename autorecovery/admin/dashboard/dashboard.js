// The page of auto-recovery: asks for /manage/v1/overview every two seconds and draws what changed.

import { byId, bytes, card, count, countOn, draw, followClock, goOn, askFor, make, of, pill, plot, since, span, table } from "./shared.js";

const EVERY_MS = 2000;
const ROWS = 10; // ledgers that are seen at once; the others are a click away

const SERVING = { writable: "good", "read-only": "wait", away: "bad" };
const STATES = { active: "good", draining: "wait", drained: "", "draining-failed": "bad" };

// All that such a ledger lacks is a copy elsewhere than on a bookie that leaves, and that still serves.
const isMoved = (ledger, leaving) => ledger.missing_on.length > 0 && ledger.missing_on.every((bookie) => leaving.has(bookie));

// What is known of the ledgers with a mark: [how many lack copies, how many are only moved, what is said of the first].
// Of those that are not listed nobody knows which they are, so they count as lacking, and the words say so.
function lackingOf(told) {
  const { total, ledgers: listed } = told.under_replicated;
  const leaving = new Set(told.bookies.filter((one) => one.state === "draining").map((one) => one.id));
  const moved = listed.filter((one) => isMoved(one, leaving)).length;
  const lacking = total - moved;
  const isMixed = moved > 0 && total > listed.length;
  return [lacking, moved, (lacking === 1 ? "ledger lacks copies" : "ledgers lack copies") + (isMixed ? ", or are moved as well" : "")];
}

function verdict(told) {
  const away = told.bookies.filter((one) => one.serving === "away" && one.state !== "drained");
  const failed = told.bookies.filter((one) => one.state === "draining-failed");
  const lost = told.under_replicated.ledgers.filter((one) => one.problem && one.problem.kind === "lost");
  if (lost.length) return ["bad", `Entries are lost in ${of(lost.length, "ledger")}: see below.`];
  if (failed.length) return ["bad", `The drain of ${failed.map((one) => one.id).join(", ")} failed: see below.`];
  if (!told.is_enabled) return ["bad", "Auto-recovery is switched off: nothing is copied. Switch it on: magnetar autorecovery enable"];
  if (!told.auditor.name) return ["bad", "Nobody is auditor: lost copies are not noticed. Start a node: magnetar autorecovery"];
  const [lacking, moved, words] = lackingOf(told);
  if (lacking) return ["wait", `${count(lacking)} ${words}.`];
  if (moved) return ["wait", `${of(moved, "ledger is", "ledgers are")} moved away from bookies that leave. Each has all of its copies meanwhile.`];
  if (away.length) return ["wait", `${away.map((one) => one.id).join(", ")} ${away.length === 1 ? "is" : "are"} away. No ledger is known to lack copies.`];
  return ["good", "Every ledger is known to have all of its copies."];
}

function summary(told) {
  const having = (serving) => told.bookies.filter((one) => one.serving === serving).length;
  const moving = told.bookies.filter((one) => one.state === "draining").length;
  const others = [[having("read-only"), "read-only"], [having("away"), "away"]].filter(([number]) => number);
  const auditor = told.auditor.tells;
  const [lacking, moved, words] = lackingOf(told);
  return [
    card(count(having("writable")), ["writable", ...others.map(([number, text]) => `${number} ${text}`)].join(", ")),
    card(count(lacking), moved ? `${words}; ${of(moved, "is moved", "are moved")}` : words),
    card(count(moving), moving === 1 ? "drain under way" : "drains under way"),
    card(told.auditor.name || "nobody", "is auditor", true),
    ...(auditor ? [card(since(auditor.last_audit_ms, " ago"), auditor.ledgers ? `last audit, of ${of(auditor.ledgers, "ledger")}` : "last audit; no ledger had to be read", true)] : []),
  ];
}

function disk(found) {
  if (!found || !found.total_bytes) return make("span", { class: "note" }, "unknown");
  const used = found.total_bytes - found.free_bytes;
  const full = used / found.total_bytes;
  return make("div", { class: "disk" },
    make("progress", { max: found.total_bytes, value: used, class: full > 0.9 ? "bad" : null, "aria-label": "disk in use" }),
    make("span", { class: "note" }, `${Math.round(full * 100)} % of ${bytes(found.total_bytes)}`));
}

function reasons(one) {
  const said = one.why && `${one.by}: ${one.why}`;
  const own = said && one.read_only_reason.includes(one.why) ? "" : one.read_only_reason; // a bookie repeats its state
  return [own, said, one.state_problem].filter(Boolean).join("; ");
}

function bookies(told) {
  const rows = told.bookies.map((one) => [
    make("span", {}, one.id),
    pill(one.serving, SERVING[one.serving]),
    one.state ? pill(one.state, STATES[one.state]) : pill("unreadable", "bad"),
    disk(one.disk),
    one.rack ? make("span", {}, one.rack) : "",
    one.read_only_reason || one.why || one.state_problem
      ? make("span", { class: "note" }, reasons(one))
      : "",
  ]);
  if (!rows.length) return make("p", { class: "note" }, "No bookie has ever joined this cluster.");
  return table(["bookie", "serves", "state", "disk", "rack", "reason"], rows);
}

function named(key, title, ledgers, total) {
  if (!ledgers.length) return null;
  const byReason = new Map(); // many ledgers often have one reason
  for (const [ledger, why] of ledgers) byReason.set(why, [...(byReason.get(why) || []), ledger]);
  const items = [...byReason].map(([why, some]) =>
    make("li", {}, make("b", {}, `${some.length === 1 ? "ledger" : "ledgers"} ${some.join(", ")}`), ` ${why}`));
  const more = total > ledgers.length ? [make("li", { class: "note" }, `and ${count(total - ledgers.length)} more ledgers`)] : [];
  return make("details", { "data-key": key }, make("summary", {}, title), make("ul", {}, ...items, ...more));
}

function drain(one) {
  const head = make("div", { class: "head" }, make("h3", {}, one.id), pill(one.state, STATES[one.state]),
    make("span", { class: "note" }, "for ", since(one.state === "draining" ? one.began_ms : one.since_ms)));
  const parts = [head];
  const told = one.drain;
  if (one.state === "draining" && told) {
    const done = told.ledgers - told.ledgers_left;
    if (told.ledgers) parts.push(make("progress", { max: Math.max(told.ledgers, 1), value: told.ledgers ? done : 0, "aria-label": `drain of ${one.id}` }));
    parts.push(make("div", { class: "figures" },
      ...(told.ledgers ? [
        make("span", {}, `${count(done)} of ${of(told.ledgers, "ledger")}`),
        told.bytes ? make("span", {}, `${bytes(told.bytes_left)} left`) : "",
        make("span", {}, `${count(told.ledgers_per_minute)} ledgers a minute`),
        make("span", {}, told.eta_s === null ? "no estimate yet" : `about ${span(told.eta_s)} to go`),
      ] : []),
      make("span", { class: "note" }, told.phase)));
    if (told.problem) parts.push(make("p", { class: "bad" }, told.problem));
    parts.push(named(`waiting ${one.id}`, of(told.waiting, "ledger waits", "ledgers wait"), Object.entries(told.waiting_ledgers), told.waiting));
    parts.push(named(`hopeless ${one.id}`, `${of(told.hopeless, "ledger")} cannot be moved`, Object.entries(told.hopeless_ledgers), told.hopeless));
  } else if (one.state === "draining") {
    parts.push(make("p", { class: "note" }, "No auditor of ours tells how far it is."));
  } else if (one.state === "draining-failed") {
    parts.push(make("p", { class: "bad" }, `${of(one.failed_ledgers_total, "ledger")} could not be moved.`));
    parts.push(named(`failed ${one.id}`, "Why", one.failed_ledgers.map((ledger) => [ledger.ledger_id, ledger.why]), one.failed_ledgers_total));
    parts.push(make("p", { class: "note" }, "Mend or delete them, then drain it again: ", make("code", {}, `magnetar bookies drain ${one.id}`)));
  } else {
    parts.push(make("p", { class: "note" }, "Nothing names it any more. Stop it, then: ", make("code", {}, `magnetar bookies remove ${one.id}`)));
  }
  return make("article", { class: "drain" }, ...parts.filter(Boolean));
}

function ledgers(told) {
  const { total, ledgers: all } = told.under_replicated;
  const some = [...all].sort((one, other) => !!other.problem - !!one.problem); // those in trouble first
  if (!total) return make("p", { class: "note" }, "None is known.");
  const rows = some.map((one) => [
    make("span", {}, String(one.ledger_id)),
    one.owner ? make("span", {}, one.owner) : "",
    make("span", {}, one.missing_on.join(", ") || "unknown"),
    make("span", {}, since(one.marked_ms)),
    one.problem ? pill(one.problem.kind, one.problem.kind === "lost" ? "bad" : "wait") : pill(one.is_locked ? "being repaired" : "waits its turn", ""),
    one.problem ? make("span", { class: "note" }, one.problem.text) : "",
  ]);
  const names = ["ledger", "of", "missing on", "known for", "state", "reason"];
  const first = table(names, rows.slice(0, ROWS));
  if (total <= ROWS) return first;
  const untold = total > some.length ? make("p", { class: "note" }, `and ${count(total - some.length)} that are not listed here: magnetar autorecovery list`) : "";
  return make("div", {}, first,
    make("details", { "data-key": "more ledgers" }, make("summary", {}, `${count(total - ROWS)} more`), table(names, rows.slice(ROWS)), untold));
}

function nodes(told) {
  if (!told.nodes.length) {
    return make("p", { class: "note" }, told.auditor.name ? "The nodes of this cluster are Apache's, which do not tell of themselves." : "No node runs.");
  }
  const rows = told.nodes.map((one) => [
    make("span", {}, one.name),
    one.is_auditor ? pill("auditor, worker", "") : pill("worker", ""),
    make("span", {}, `${count(one.repaired || 0)}`),
    make("span", {}, `${of(one.copied_entries || 0, "entry", "entries")}, ${bytes(one.copied_bytes || 0)}`),
    one.last_repaired_ms ? make("span", {}, since(one.last_repaired_ms, " ago")) : make("span", { class: "note" }, "never"),
    (one.under_way || []).length ? make("span", {}, one.under_way.join(", ")) : "",
    one.waiting ? make("span", { class: "wait" }, of(one.waiting, "ledger waits", "ledgers wait")) : "",
  ]);
  return table(["node", "role", "ledgers repaired", "copied", "last repair", "at work on", "trouble"], rows);
}

function history(told) {
  const steps = told.history;
  const most = Math.max(...steps.map((step) => step[1]), 0);
  const fastest = Math.max(...steps.map((step) => step[2]), 0);
  if (!most) return make("p", { class: "note" }, "Nothing was copied.");
  return plot(steps.map((step) => step[0]), [{ name: "entries", values: steps.map((step) => step[1]) }],
    `Entries a second, all nodes together; at most ${count(Math.round(most))} (${bytes(fastest)} a second).`,
    `entries copied a second in the last hour, at most ${count(Math.round(most))}`, (value) => count(Math.round(value)));
}

function show(told) {
  followClock(told.now_ms);
  const [kind, text] = verdict(told);
  byId("verdict").className = `verdict ${kind}`;
  byId("verdict").textContent = text;
  document.title = `${kind === "good" ? "" : "! "}Magnetar: bookies`;
  const leaving = told.bookies.filter((one) => one.state && one.state !== "active");
  draw("summary", [told.bookies.map((one) => [one.serving, one.state]), lackingOf(told), told.auditor], () => summary(told));
  byId("drains").hidden = !leaving.length;
  draw("drains", leaving, () => leaving.map(drain));
  draw("bookies", told.bookies.map(({ drain: _, ...rest }) => rest), () => bookies(told));
  draw("ledgers", told.under_replicated, () => ledgers(told));
  draw("history", told.history, () => history(told));
  draw("nodes", told.nodes, () => nodes(told));
  countOn();
}

goOn(async () => show(await askFor("../manage/v1/overview")), EVERY_MS);
