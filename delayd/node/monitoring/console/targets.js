// Pausing, resuming and limiting a target.

import { ask } from "./api.js";
import { confirm, el, many, time } from "./dom.js";

const path = (topic) => `/v1/targets/${encodeURIComponent(topic)}`;

const rate = () =>
  el("label", {}, "Messages a second afterwards; empty: as many as the target takes",
    el("input", { name: "rate", type: "number", min: 1 }));

// What was left empty is not asked for; numbers are numbers.
const given = (fields) => Object.fromEntries(
  Object.entries(fields)
    .filter(([, text]) => text !== "")
    .map(([name, text]) => [name, name === "lasting" ? text : Number(text)]),
);

// How many messages a change concerns, if this node counts the target by name.
async function pendingFor(topic) {
  try {
    const count = (await ask("GET", "/v1/pending/counts")).topics[topic];
    return count === undefined ? [] : [`${many(count, "message")} for ${topic} are pending.`];
  } catch {
    return [];
  }
}

const stateOf = (found) =>
  found.state === "not-paused" ? `${found.topic} is not paused: nothing waits.`
    : `${found.topic}: ${found.state}${found.until_ms ? `, until ${time(found.until_ms)}` : ""}.`;

async function pause(topic) {
  const says = [
    `Nothing is delivered to ${topic} until the pause ends, by itself or by Resume. What becomes ` +
      "due waits in its order, other targets go on, and delayd-late counts on.",
    ...(await pendingFor(topic)),
  ];
  const fields = [
    el("label", {}, "For: 10m, 2h; 24h at most",
      el("input", { name: "lasting", required: true, value: "1h" })),
    rate(),
  ];
  await confirm(`Pause ${topic}?`, says, "Pause the target",
    async (asked) => stateOf(await ask("POST", `${path(topic)}/pause`, given(asked))), fields);
}

async function resume(topic) {
  const says = [
    `The pause of ${topic} ends. What has waited goes out in its order.`,
    ...(await pendingFor(topic)),
  ];
  await confirm(`Resume ${topic}?`, says, "Resume the target",
    async (asked) => stateOf(await ask("POST", `${path(topic)}/resume`, given(asked))), [rate()]);
}

async function limit(topic) {
  const says = [
    `When so many messages for ${topic} are pending, or so many requests a second came in the last ` +
      "10 s, further ones are refused as over-quota, until a tenth is free again. What is pending " +
      "stays. What is left empty is not changed; 0 ends that limit, and 0 twice both.",
    ...(await pendingFor(topic)),
  ];
  const fields = [
    el("label", {}, "Pending messages at most", el("input", { name: "max_pending", type: "number", min: 0 })),
    el("label", {}, "Requests a second at most", el("input", { name: "rate", type: "number", min: 0 })),
  ];
  const act = async (asked) => {
    const limits = given(asked);
    const ends = limits.max_pending === 0 && limits.rate === 0;
    const found = await (ends ? ask("DELETE", `${path(topic)}/limit`) : ask("PUT", `${path(topic)}/limit`, limits));
    const used = found.max_pending == null ? "" :
      `, ${found.pending.toLocaleString()} of ${found.max_pending.toLocaleString()} pending`;
    return `${topic}: ${found.state}${used}${found.rate == null ? "" : `, ${found.rate.toLocaleString()} a second`}.`;
  };
  await confirm(`Limit ${topic}?`, says, "Set the limit", act, fields);
}

const ACTS = { pause, resume, limit };

export const change = ({ topic, act }) => ACTS[act](topic);
