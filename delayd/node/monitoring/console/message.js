// The life of an id: what is known, and cancelling, replacing and moving what is pending.

import { ask } from "./api.js";
import { at, confirm, el, table, time } from "./dom.js";

const WAIT = "wait=true&timeout_ms=30000";

// Browsers take such parts out of an address, however they are written: it would mean another id.
const path = (id) => {
  const parts = id.split("/");
  if (parts.some((part) => part === "." || part === ".."))
    throw new Error("A browser cannot ask for an id with . or .. between slashes: use delayd show.");
  return `/v1/messages/${parts.map(encodeURIComponent).join("/")}`;
};

const AGAIN_MS = 500;
const LOOKS_MAX = 20;

let shown = ""; // what is known of the id that was looked up last, as text

// Shows what is known of an id.
export async function lookUp(id) {
  const place = at("known");
  try {
    const known = await ask("GET", `${path(id)}?places=true`);
    const found = el("table");
    table(
      found,
      `What ${known.node} knows of ${id}`,
      ["state", "due", "recurs", "target", "request", "ended by", "decided", "record", "at", "note"],
      known.messages.map((each) => [
        each.state, time(dueOf(each)), timesOf(each), each.topic, each.source, each.killed_by,
        time(each.decided_ms), each.at, time(each.at_ms), each.problem,
      ]),
    );
    const pending = known.messages.find((each) => each.state === "pending");
    place.replaceChildren(
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The id" }, found),
      ...(pending ? [actions(id, pending)] : []),
    );
    shown = JSON.stringify(known.messages);
  } catch (error) {
    place.replaceChildren(el("p", { class: error.status === 404 ? "" : "error" }, error.message));
    shown = "";
  }
}

// Looks again until this node has read what a master has decided: it may be a moment behind.
async function lookUpAnew(id, before) {
  for (let look = 0; look < LOOKS_MAX; look++) {
    await lookUp(id);
    if (shown !== before && !shown.includes('"state":"asked"')) return;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

function actions(id, pending) {
  return el("p", { class: "row" },
    el("button", { type: "button", class: "danger", click: () => cancel(id, pending) }, "Cancel …"),
    el("button", { type: "button", click: () => replace(id, pending) }, "Replace …"),
    el("button", { type: "button", click: () => fire(id, pending) }, "Fire …"),
    el("button", { type: "button", click: () => reschedule(id, pending) }, "Reschedule …"));
}

const said = (judged) =>
  `${judged.verdict}${judged.detail ? `: ${judged.detail}` : ""} (request ${judged.source})`;

// The expression of a series and how often it came, or the clock of a local time.
function timesOf({ series, local }) {
  if (series) return `${series.cron}, ${series.zone}, occurrence ${series.occurrence}`;
  return local ? `${local.at}, ${local.zone}` : "";
}

async function change(id, title, says, verb, fields, send) {
  const before = shown;
  let judged = null;
  const act = async (given) => said((judged = await send(given)));
  await confirm(title, says, verb, act, fields);
  if (judged !== null) await lookUpAnew(id, before);
}

// Of a local time the moment that it is, as far as it is resolved.
function dueOf(pending) {
  return pending.local?.due_ms ?? pending.due_ms;
}

async function cancel(id, pending) {
  const says = [
    `${id} is due ${time(dueOf(pending))} for ${pending.topic ?? "its target"}. ` +
      "Once it is cancelled it will not be delivered, and this cannot be undone.",
    "If a master delivers it before it reads this request, the answer is too-late.",
  ];
  await change(id, `Cancel ${id}?`, says, "Cancel the message", [],
    () => ask("DELETE", `${path(id)}?${WAIT}`));
}

async function fire(id, pending) {
  const says = [
    `${id} is due ${time(dueOf(pending))}. It will be delivered to ` +
      `${pending.topic ?? "its target"} now, once, and this cannot be undone.`,
    ...(pending.series
      ? ["It is a series: the current occurrence goes out now, and the series goes on."] : []),
    "If a master delivers it before it reads this request, the answer is too-late.",
  ];
  await change(id, `Fire ${id}?`, says, "Deliver it now", [],
    () => ask("POST", `${path(id)}/fire?${WAIT}`));
}

async function reschedule(id, pending) {
  const says = [
    `${id} is due ${time(dueOf(pending))}. It will be delivered so much later or earlier, with the ` +
      "value and the headers that it has. If a master delivers it before it reads this request, " +
      "the answer is too-late.",
  ];
  const fields = [
    el("label", {}, "Later by +10m, +2h; earlier by -10m",
      el("input", { name: "by", required: true })),
  ];
  await change(id, `Reschedule ${id}?`, says, "Move the message", fields,
    (given) => ask("POST", `${path(id)}/reschedule?${WAIT}`, given));
}

async function replace(id, pending) {
  const says = [
    `What is pending under ${id}, due ${time(pending.due_ms)}, will not be delivered; this message ` +
      "will be in its place. If a master delivers the old one before it reads this request, the " +
      "answer is too-late.",
  ];
  const fields = [
    el("label", {}, "Target",
      el("input", { name: "topic", required: true, value: pending.topic ?? "" })),
    el("label", {}, "Delay from now: 10m, 2h, 30d", el("input", { name: "delay", required: true })),
    el("label", {}, "Value, as text", el("textarea", { name: "value" })),
  ];
  await change(id, `Replace ${id}?`, says, "Replace the message", fields,
    (given) => ask("PUT", `${path(id)}?${WAIT}`, given));
}

// Schedules a new message, and shows its id if it has one.
export async function schedule() {
  const says = [
    "A new message. With an id it can be cancelled, and the same request again does nothing more.",
  ];
  const fields = [
    el("label", {}, "Target", el("input", { name: "topic", required: true, maxlength: 249 })),
    el("label", {}, "Id; may be empty", el("input", { name: "id", maxlength: 256 })),
    el("label", {}, "Delay from now: 10m, 2h, 30d; or a cron expression, such as 0 9 * * *",
      el("input", { name: "when", required: true })),
    el("label", {}, "Zone of a cron expression; empty: UTC", el("input", { name: "zone" })),
    el("label", {}, "Value, as text", el("textarea", { name: "value" })),
  ];
  let sent = null;
  const act = async ({ topic, id, when, zone, value }) => {
    const time = /^\s*\d+[a-z]+\s*$/.test(when)
      ? { delay: when.trim() } : { cron: when.trim(), ...(zone ? { zone } : {}) };
    const judged = await ask("POST", `/v1/messages?${WAIT}`, { topic, value, ...(id ? { id } : {}), ...time });
    sent = id;
    return said(judged);
  };
  await confirm("Schedule a message", says, "Schedule it", act, fields);
  if (!sent) return;
  at("look-up").elements.id.value = sent;
  await lookUpAnew(sent, "");
}
