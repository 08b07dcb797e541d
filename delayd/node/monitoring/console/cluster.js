// Who leads, what happens now, nodes and failing targets: from the events of the stream.

import { at, bytes, clock, duration, el, figures, many, table, time } from "./dom.js";

let before = null; // the last look at the cluster, for what happened between two

export function showEvent(event) {
  const cluster = event.cluster;
  showDue(event.due);
  if (cluster === null) return;
  at("cluster").textContent = cluster.cluster;
  document.title = `${cluster.healthy ? "" : "! "}delayd ${cluster.cluster}`;
  at("problems").replaceChildren(...cluster.problems.map((each) => el("li", {}, each)));
  const leader = leaderOf(cluster.shards[0], cluster);
  figures(at("leader"), cluster.shards.length > 1 ? ofShards(cluster.shards) : ofShard(cluster.shards[0], leader));
  showShards(cluster);
  showFlow(event);
  table(
    at("nodes"),
    `${many(cluster.nodes.length, "node")}, as each says of itself`,
    ["node", "role", "ready", "release", "unread", "disk free", "memory", "checkpoint", "clock", "copied by"],
    cluster.nodes.map((node) => nodeRow(node, cluster.clocks)),
  );
  showFailing(cluster.failing_targets);
  showPaused(cluster.paused);
  showLimits(cluster.limits);
  showEvents(leader?.cancel_on);
  showLateness(cluster.lateness);
  showFailovers(cluster.failovers);
}

const leaderOf = (shard, cluster) => cluster.nodes.find((node) => node.node === shard.leader);
const upTo = (shard) => (shard.cursor_ms ? time(shard.cursor_ms) : "nothing yet");
const behind = (shard) => duration(Math.max(0, shard.cursor_age_ms));

const ofShard = (shard, leader) => [
  ["leader", shard.leader ?? "nobody"],
  ["leads since", leader?.leads_since_ms ? time(leader.leads_since_ms) : "?"],
  ["term", shard.term],
  ["delivered up to", upTo(shard)],
  ["behind the clock", behind(shard)],
  ["records not read", shard.lag.toLocaleString()],
];

// The one that is furthest behind stands for all.
function ofShards(shards) {
  const last = shards.reduce((a, b) => (b.cursor_age_ms > a.cursor_age_ms ? b : a));
  const lag = shards.reduce((sum, each) => sum + each.lag, 0);
  return [
    ["shards", shards.length],
    ["without a leader", shards.filter((each) => each.leader === null).length],
    ["delivered up to", upTo(last)],
    ["behind the clock", behind(last)],
    ["records not read", lag.toLocaleString()],
  ];
}

function showShards(cluster) {
  const { shards } = cluster;
  at("shards-part").hidden = shards.length < 2;
  if (shards.length < 2) return;
  table(
    at("shards"),
    `${many(shards.length, "shard")}: the node that leads each delivers its messages`,
    ["shard", "leader", "leads since", "term", "delivered up to", "behind", "unread"],
    shards.map((shard) => {
      const since = leaderOf(shard, cluster)?.shards_led_since_ms?.[shard.shard];
      return [
        shard.shard, shard.leader ?? "nobody", since ? time(since) : "?", shard.term, upTo(shard), behind(shard),
        shard.lag.toLocaleString(),
      ];
    }),
  );
}

function nodeRow(node, clocks) {
  const named = link(node.admin, node.node);
  if (!node.role) return [named, "does not answer", "", "", "", "", "", "", "", ""];
  return [
    named,
    node.role,
    node.ready ? "yes" : node.unready ?? "no",
    node.version,
    (node.ingest_lag ?? []).reduce((sum, each) => sum + (each ?? 0), 0).toLocaleString(),
    `${bytes(node.disk?.free_bytes)}${node.disk?.room === "enough" ? "" : ` (${node.disk?.room})`}`,
    bytes(node.process?.memory_bytes),
    node.checkpoint_took_ms == null ? "" : `${node.checkpoint_took_ms} ms`,
    clockOf(clocks.find((each) => each.node === node.node)),
    (node.snapshots ?? []).map((each) => each.fetcher).join(", ") || "nobody",
  ];
}

// Of a node that answered: what explains nothing but its clock.
function clockOf(found) {
  if (found === undefined) return "";
  const broker = found.broker_drift_ms;
  return `${found.offset_ms} ms${broker === null ? "" : `, broker ${broker} ms`}`;
}

const atMost = (ms) => (ms === null ? "over 1 h" : `${ms.toLocaleString()} ms`);

// Who was slow lately comes first.
const TARGETS_MAX = 20;

function showLateness(targets) {
  const shown = targets.slice(0, TARGETS_MAX);
  table(
    at("lateness"),
    targets.length
      ? `Messages of the last 5 min were late by at most${targets.length > TARGETS_MAX ? `; the latest ${TARGETS_MAX} of ${targets.length} targets` : ""}`
      : "Nothing was delivered in the last 5 min.",
    targets.length ? ["target", "messages", "half", "99 %", "99.9 %"] : [],
    shown.map((each) => [
      each.topic, each.messages.toLocaleString(),
      atMost(each.p50_ms), atMost(each.p99_ms), atMost(each.p999_ms),
    ]),
  );
}

const nameOf = (owner) => owner.split("/")[0];

function showFailovers(failovers) {
  table(
    at("failovers"),
    failovers.length ? "The newest first, as far as a node that runs has seen them" : "None since the nodes were started.",
    failovers.length ? ["at", "term", "from", "to", "gap"] : [],
    failovers.map((each) => [
      time(each.begun_ms), each.term, nameOf(each.former), nameOf(each.owner),
      each.gap_ms === null ? "not known: nothing was due" : `${each.gap_ms.toLocaleString()} ms`,
    ]),
  );
}

// The page of another node, without the digest of its certificate.
export function link(admin, text) {
  const found = /^(?:(https):\/\/(?:[0-9a-f]+@)?)?([\w.[\]:-]+)$/.exec(admin ?? "");
  return found ? el("a", { href: `${found[1] ?? "http"}://${found[2]}/` }, text) : text;
}

// A second's worth of what nodes have counted between two looks.
function showFlow(event) {
  if (before !== null && event.cluster_ms === before.cluster_ms) return;
  const rate = (name) => {
    if (before === null) return "…";
    const counted = event.cluster.nodes.map((node) => {
      const former = before.cluster.nodes.find((each) => each.node === node.node);
      return Math.max(0, (node[name] ?? 0) - (former?.[name] ?? node[name] ?? 0));
    });
    const s = (event.cluster_ms - before.cluster_ms) / 1000;
    const most = name === "ingested_count" ? Math.max(0, ...counted) : counted.reduce((a, b) => a + b, 0);
    return Math.round(most / s).toLocaleString();
  };
  figures(at("flow"), [
    ["due / s", event.due === null ? "?" : event.due[0].toLocaleString()],
    ["delivered / s", rate("delivered_count")],
    ["late / s (over 1 s)", rate("late_count")],
    ["taken in / s", rate("ingested_count")],
  ]);
  before = event;
}

function showDue(due) {
  const svg = at("due");
  svg.replaceChildren();
  if (due === null) return;
  const most = Math.max(1, ...due);
  due.forEach((count, second) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = (46 * count) / most;
    const shape = { x: 4 * second, width: 3, y: 48 - height, height };
    for (const [name, value] of Object.entries(shape)) bar.setAttribute(name, value);
    svg.append(bar);
  });
  const sum = due.reduce((total, each) => total + each, 0);
  at("due-caption").textContent =
    `${many(sum, "message")} due in the next ${due.length} s, at most ${Math.max(...due)} in one`;
}

function showFailing(targets) {
  table(
    at("failing"),
    targets.length ? many(targets.length, "target") : "None: every target takes its messages.",
    targets.length ? ["target", "since", "messages", "attempts", "problem"] : [],
    targets.map((each) => [
      each.topic,
      time(each.since_ms),
      each.messages.toLocaleString(),
      each.attempts.toLocaleString(),
      each.problem,
    ]),
  );
}

function showPaused(targets) {
  table(
    at("paused"),
    targets.length ? many(targets.length, "target") : "None: nothing is held back.",
    targets.length ? ["target", "state", "since", "until", "a second, then"] : [],
    targets.map((each) => [
      each.topic, each.state, time(each.since_ms), time(each.until_ms), each.rate.toLocaleString(),
    ]),
  );
}

function showLimits(targets) {
  table(
    at("limits"),
    targets.length ? many(targets.length, "target") : "None: any number may be pending.",
    targets.length ? ["target", "state", "pending", "limit", "in 10 s", "limit a second", "full since"] : [],
    targets.map((each) => [
      each.topic,
      each.state,
      each.pending.toLocaleString(),
      each.max_pending === null ? "" : each.max_pending.toLocaleString(),
      each.rate === null ? "" : each.taken.toLocaleString(),
      each.rate === null ? "" : each.rate.toLocaleString(),
      each.full_since_ms === null ? "" : time(each.full_since_ms),
    ]),
  );
}

// Only the master reads them, and counts since it was started.
function showEvents(bridge) {
  const topics = Object.entries(bridge?.topics ?? {});
  const count = (each) => each?.toLocaleString() ?? "?";
  const says = topics.length ? many(topics.length, "topic") : "None: the leader's configuration names no topic of events.";
  table(
    at("events"),
    bridge?.problem ? `${says}: ${bridge.problem}` : says,
    topics.length ? ["topic", "to be read", "cancels", "without a usable id", "lost", "problem"] : [],
    topics.map(([topic, each]) => [
      topic, count(each.lag), count(each.cancels), count(each.unusable), count(each.lost), each.problem,
    ]),
  );
}

// What a person reads first: from which node, and how old.
export function freshness(event) {
  const age_ms = event.cluster_ms === null ? null : event.at_ms - event.cluster_ms;
  const seen = age_ms === null ? "; the cluster was not seen yet" :
    age_ms > 3000 ? `; the cluster was seen ${duration(age_ms)} ago` : "";
  const why = event.cluster_problem === null ? "" : `: ${event.cluster_problem}`;
  return `Live from ${event.node} (${event.role}), ${clock(event.at_ms)}${seen}${why}`;
}
