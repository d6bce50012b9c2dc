// The page of the broker. What is shown stands in the address after #: nothing (all namespaces), tenant/namespace, or
// domain/tenant/namespace/topic; it is asked for every five seconds, and what changed is drawn.

import { askFor, byId, bytes, card, count, countOn, draw, followClock, goOn, make, note, of, pill, plot, rate, since, table } from "./shared.js";

const EVERY_MS = 5000;
const LEDGERS_EVERY_MS = 30000; // each asks the metadata store for some records
const SECTIONS = ["namespaces", "topics", "subscriptions", "producers", "messages", "volume", "backlog", "ledgers", "signs", "storage", "brokers"];

// ---------------------------------------------------------------------------------------- where one is

const partsOf = (hash) => {
  try {
    return hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch { // no valid address
    return [];
  }
};
const pathOf = (parts) => parts.map(encodeURIComponent).join("/");
const link = (parts, text) => make("a", { href: `#/${pathOf(parts)}` }, text);
const TOPIC = /^([a-z-]+):\/\/([^/]+)\/([^/]+)\/(.+)$/s;

function topicLink(name, text = name) {
  const found = TOPIC.exec(name);
  return found ? link(found.slice(1), text) : make("span", {}, text);
}

function drawPath(parts, cluster) {
  const steps = [link([], cluster || "all")];
  if (parts.length === 2) steps.push(make("span", {}, parts.join("/")));
  if (parts.length === 4) steps.push(link(parts.slice(1, 3), parts.slice(1, 3).join("/")), make("span", {}, parts[3]));
  draw("path", [parts, cluster], () => steps);
}

// ---------------------------------------------------------------------------------------- parts

const inOut = (told) => [
  make("span", {}, rate(told.rate_in)), make("span", {}, rate(told.rate_out)),
  make("span", {}, bytes(told.bytes_in)), make("span", {}, bytes(told.bytes_out)),
];
const backlogOf = (number) => make("span", { class: number > 0 ? null : "note" }, count(number));

const cards = (sum) => [
  card(rate(sum.rate_in), `messages a second in, ${bytes(sum.bytes_in)}`),
  card(rate(sum.rate_out), `messages a second out, ${bytes(sum.bytes_out)}`),
  card(count(sum.backlog), "entries of backlog"),
  card(bytes(sum.storage), "stored, without copies"),
  card(count(sum.producers), sum.producers === 1 ? "producer" : "producers"),
  card(count(sum.consumers), sum.consumers === 1 ? "consumer" : "consumers"),
];

const NOTHING_YET = () => note("Nothing is known yet: who serves this has just begun.");

function plots(hour) {
  for (const id of ["messages", "volume", "backlog"]) byId(id).hidden = !hour;
  if (!hour) return;
  const times = hour.backlog.map((_, step) => hour.first_ms + step * hour.step_ms);
  const most = (values) => Math.max(...values, 0);
  const two = (id, one, other, shown, what) => draw(id, [times[0], one, other], () => {
    const [most1, most2] = [most(one), most(other)];
    if (one.every((value) => value === null)) return NOTHING_YET();
    if (!most1 && !most2) return note("Nothing went through.");
    return plot(times, [{ name: "in", values: one }, { name: "out", values: other }],
      `At most ${shown(most1)} in and ${shown(most2)} out.`, `${what} in and out in the last hour`, shown);
  });
  two("messages", hour.messages_in, hour.messages_out, rate, "messages a second");
  two("volume", hour.bytes_in, hour.bytes_out, bytes, "bytes a second");
  draw("backlog", [times[0], hour.backlog], () => hour.backlog.every((value) => value === null) ? NOTHING_YET() : most(hour.backlog)
    ? plot(times, [{ name: "backlog", values: hour.backlog }], `At most ${of(most(hour.backlog), "entry", "entries")}, all subscriptions together.`,
      "entries of backlog in the last hour", (value) => count(Math.round(value)))
    : note("There was none."));
}

function verdict(kind, text) {
  byId("verdict").hidden = !text;
  byId("verdict").className = `verdict ${kind}`;
  byId("verdict").textContent = text;
}

const silent = (number) => (number ? `${of(number, "broker does", "brokers do")} not answer: what it serves is missing here.` : "");

function more(total, shown, what) {
  return total > shown ? note(`and ${count(total - shown)} more ${what}`) : null;
}

// ---------------------------------------------------------------------------------------- all namespaces

async function showAll(isCurrent) {
  const told = await askFor("page/overview");
  if (!isCurrent()) return;
  begin([], told, ["namespaces", ...(told.signs.length ? ["signs"] : []), ...(told.storage ? ["storage"] : []), ...(told.sees_all ? ["brokers"] : [])]);
  const open = told.sum.topics;
  const ill = (told.storage?.bookies ?? []).filter((one) => one.problems.length);
  verdict("bad", [silent(told.silent_brokers), ...ill.map((one) => `${one.name}: ${one.problems[0]}.`),
    told.storage?.lost_ledgers ? `${of(told.storage.lost_ledgers, "ledger has", "ledgers have")} entries that no bookie has.` : ""].filter(Boolean).join(" "));
  draw("summary", [told.sum, told.caller], () => [card(count(open), open === 1 ? "open topic" : "open topics"), ...cards(told.sum),
    ...(told.caller ? [card(told.caller, "is who you are", true)] : [])]);
  draw("namespaces", [told.namespaces, told.tenants, told.namespaces_total], () => namespaces(told));
  draw("signs", told.signs, () => told.signs.map((text) => make("p", { class: "bad" }, text)));
  draw("storage", told.storage, () => storage(told.storage));
  draw("brokers", told.brokers, () => brokers(told));
  plots(told.hour);
}

function namespaces(told) {
  const empty = told.tenants.filter((tenant) => !told.namespaces.some((one) => one.name.startsWith(`${tenant}/`)));
  const without = empty.length && told.namespaces_total === told.namespaces.length ? note(`Without a namespace: ${empty.join(", ")}`) : null;
  if (!told.namespaces.length) return [note("There is no namespace that you may see."), without];
  const rows = told.namespaces.map((one) => [
    link(one.name.split("/"), one.name),
    ...(one.is_whole
      ? [make("span", {}, count(one.topics)), ...inOut(one), backlogOf(one.backlog), make("span", {}, bytes(one.storage))]
      : [make("span", { class: "note" }, "some"), "", "", "", "", "", ""]),
  ]);
  return [table(["namespace", "open topics", "in/s", "out/s", "bytes in/s", "bytes out/s", "backlog", "stored"], rows),
    more(told.namespaces_total, told.namespaces.length, "namespaces; write /#/TENANT/NAMESPACE into the address"), without];
}

function storage(told) {
  return told ? table(["bookie", "state", "free", "of"], told.bookies.map((one) => [
    make("span", {}, one.name),
    one.problems.length ? make("span", { class: "bad" }, one.problems.join("; ")) : pill("writable", "good"),
    ...[one.free_bytes, one.total_bytes].map((size) => make("span", {}, size === null ? "unknown" : bytes(size))),
  ])) : [];
}

function brokers(told) {
  return table(["broker", "state", "connections", "version"], told.brokers.map((one) => [
    one.name === told.answered_by ? make("span", {}, `${one.name} (this one)`)
      : /^https?:/.test(one.url) ? make("a", { href: one.url, rel: "noreferrer" }, one.name) : make("span", {}, one.name),
    one.problem ? make("span", { class: "bad" }, one.problem) : pill("answers", "good"),
    make("span", {}, one.connections === null ? "unknown" : count(one.connections)),
    one.version ? make("span", {}, one.version) : "",
  ]));
}

// ---------------------------------------------------------------------------------------- a namespace

async function showNamespace(parts, isCurrent) {
  const find = byId("find").value.trim();
  const told = await askFor(`page/namespaces/${pathOf(parts)}${find ? `?find=${encodeURIComponent(find)}` : ""}`);
  if (!isCurrent()) return;
  begin(parts, told, ["topics"]);
  verdict("bad", silent(told.silent_brokers));
  draw("summary", told.sum, () => [card(count(told.sum.topics), told.sum.topics === 1 ? "open topic" : "open topics"), ...cards(told.sum)]);
  draw("topics", [told.topics, told.topics_total, find], () => topics(told, find));
  plots(told.hour);
}

function topics(told, find) {
  if (!told.topics.length) return note(find ? "No topic has this in its name." : "There is no topic.");
  const rows = told.topics.map((one) => [
    topicLink(one.name, one.name.replace(/^persistent:\/\/[^/]+\/[^/]+\//, "")),
    ...(one.is_open
      ? [...inOut(one), backlogOf(one.backlog), make("span", {}, bytes(one.storage)),
        make("span", {}, count(one.producers)), make("span", {}, `${count(one.consumers)} on ${count(one.subscriptions)}`),
        make("span", { class: "note" }, one.broker || "")]
      : ["", "", "", "", "", "", "", "", make("span", { class: "note" }, "not open")]),
  ]);
  return [table(["topic", "in/s", "out/s", "bytes in/s", "bytes out/s", "backlog", "stored", "producers", "consumers", "broker"], rows),
    more(told.topics_total, told.topics.length, "topics; find them by a part of the name")];
}

// ---------------------------------------------------------------------------------------- a topic

let ledgersOf = ""; // the topic whose ledgers are shown
let ledgersAskedMs = 0;

async function showTopic(parts, isCurrent) {
  const path = pathOf(parts);
  const told = await askFor(`page/topics/${path}`);
  if (!isCurrent()) return;
  begin(parts, told, told.is_open ? ["subscriptions", "producers", "ledgers"] : []);
  if (!told.is_open) {
    verdict("", "This topic is not open: nobody has used it since its broker started or it was unloaded.");
    draw("summary", told.name, () => []);
    plots(null);
    return;
  }
  const blocked = told.stats.subscriptions.filter((one) =>
    one.blockedSubscriptionOnUnackedMsgs || one.consumers.some((each) => each.blockedConsumerOnUnackedMsgs));
  verdict("wait", blocked.length
    ? `${blocked.map((one) => one.name).join(", ")}: consumers get nothing more until they acknowledge some of what was delivered.` : "");
  draw("summary", [told, told.stats.messages_in], () => [...cards(told),
    card(count(told.stats.messages_in), `messages in since it was opened, ${bytes(told.stats.bytes_in)}`),
    ...(told.broker ? [card(told.broker, "serves it", true)] : [])]);
  draw("subscriptions", told.stats.subscriptions, () => subscriptions(told.stats));
  draw("producers", told.stats.publishers, () => producers(told.stats));
  plots(told.hour);
  if (ledgersOf === path && Date.now() - ledgersAskedMs < LEDGERS_EVERY_MS) return;
  ledgersAskedMs = Date.now();
  const found = await askFor(`page/ledgers/${path}`);
  if (!isCurrent()) return;
  ledgersOf = path;
  draw("ledgers", found, () => ledgers(found));
}

const host = (address) => address.replace(/^\//, "");
const at = (text) => { // a time as ISO text
  const wallMs = Date.parse(text);
  return Number.isNaN(wallMs) ? make("span", {}, text) : since(wallMs);
};

function subscriptions(stats) {
  if (!stats.subscriptions.length) return note("There is none, so messages are only kept as long as the namespace's retention says.");
  const rows = stats.subscriptions.map((one) => [
    make("span", {}, one.name),
    pill(one.type === "None" ? "nobody" : one.type, ""),
    backlogOf(one.msgBacklog),
    make("span", {}, rate(one.msgRateOut)),
    make("span", {}, rate(one.messageAckRate)),
    one.blockedSubscriptionOnUnackedMsgs ? pill(`${count(one.unackedMessages)}, blocked`, "wait") : make("span", {}, count(one.unackedMessages)),
    one.lastAckedTimestamp ? since(one.lastAckedTimestamp, " ago") : make("span", { class: "note" }, "never"),
    one.consumers_total ? consumers(one) : make("span", { class: "note" }, "none"),
  ]);
  return [table(["subscription", "type", "backlog", "out/s", "acks/s", "unacked", "last ack", "consumers"], rows),
    more(stats.subscriptions_total, stats.subscriptions.length, "subscriptions")];
}

function consumers(one) {
  const items = one.consumers.map((each) => make("li", {}, make("b", {}, each.consumerName || "no name"),
    ` ${host(each.address)}, `, at(each.connectedSince), `, ${rate(each.msgRateOut)}/s, ${count(each.unackedMessages)} unacked`,
    each.blockedConsumerOnUnackedMsgs ? ", blocked" : "", each.clientVersion ? `, ${each.clientVersion}` : ""));
  const rest = one.consumers_total > one.consumers.length ? [make("li", { class: "note" }, `and ${count(one.consumers_total - one.consumers.length)} more`)] : [];
  return make("details", { "data-key": `consumers ${one.name}` }, make("summary", {}, count(one.consumers_total)), make("ul", {}, ...items, ...rest));
}

function producers(stats) {
  if (!stats.publishers.length) return note("None is connected.");
  const rows = stats.publishers.map((one) => [
    make("span", {}, one.producerName),
    make("span", {}, host(one.address)),
    at(one.connectedSince),
    make("span", {}, rate(one.msgRateIn)),
    make("span", {}, bytes(one.msgThroughputIn)),
    make("span", { class: "note" }, one.clientVersion || ""),
  ]);
  return [table(["producer", "address", "for", "in/s", "bytes in/s", "client"], rows), more(stats.publishers_total, stats.publishers.length, "producers")];
}

function ledgers(found) {
  if (!found.ledgers.length) return note("It has none.");
  const rows = found.ledgers.map((one) => [
    make("span", {}, String(one.ledger_id)),
    one.problem ? make("span", { class: "bad" }, one.problem) : pill(one.state, one.state === "open" ? "good" : ""),
    make("span", {}, count(one.entries)),
    make("span", {}, bytes(one.size)),
    one.quorums ? make("span", {}, one.quorums.join("/")) : "",
    one.segments ? make("span", {}, one.segments.map(([first, some]) => `${first ? `from entry ${first}: ` : ""}${some.join(", ")}`).join("; ")) : "",
  ]);
  return [table(["ledger", "state", "entries", "bytes", "E/W/A", "on bookies"], rows), more(found.ledgers_total, found.ledgers.length, "older ledgers")];
}

// ---------------------------------------------------------------------------------------- going on

function begin(parts, told, shown) {
  followClock(told.now_ms);
  drawPath(parts, told.cluster);
  document.title = `Magnetar: ${parts.length ? parts.slice(-2).join("/") : "topics"}`;
  for (const id of SECTIONS) if (!["messages", "volume", "backlog"].includes(id)) byId(id).hidden = !shown.includes(id);
}

const again = goOn(async (isCurrent) => {
  const parts = partsOf(location.hash);
  if (parts.length === 4) await showTopic(parts, isCurrent);
  else if (parts.length === 2) await showNamespace(parts, isCurrent);
  else await showAll(isCurrent);
  if (isCurrent()) countOn();
}, EVERY_MS);

window.addEventListener("hashchange", () => { // nothing of the former view stays until the new one is there
  for (const id of SECTIONS) byId(id).hidden = true;
  byId("find").value = "";
  ledgersOf = "";
  verdict("", "");
  draw("summary", location.hash, () => []);
  again();
});
byId("find").addEventListener("input", again);
