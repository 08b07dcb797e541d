// The page: its stream, whether that is stale, its forms, its token.

import { hasToken, listen, useToken } from "./api.js";
import { showAudits } from "./audits.js";
import { freshness, link, showEvent } from "./cluster.js";
import { search } from "./dead.js";
import { at, clock, confirm, el } from "./dom.js";
import { lookUp, schedule } from "./message.js";
import { list } from "./pending.js";
import { change } from "./targets.js";
import { HEAT_MS, showWheel } from "./wheel.js";

const STALE_MS = 1500; // events come each second: within 2 s of the last one it is said
const GIVE_UP_MS = 10000; // a connection that is silent for so long is made anew
const AGAIN_MS = 1000;

let heard_ms = performance.now();
let last = null;
let stream = new AbortController();
let drawn_ms = -Infinity;
let refused = false;
let staleness = 0; // the timer that ends what is fresh

async function follow() {
  for (;;) {
    stream = new AbortController();
    try {
      for await (const event of listen("/v1/live", stream.signal)) await take(event);
    } catch (error) {
      refused = error.status === 401 || error.status === 403;
      if (refused) at("fresh").textContent = error.message;
      if (refused && !at("dialog").open) askToken();
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

async function take(event) {
  heard_ms = performance.now();
  last = event;
  refused = false;
  showEvent(event);
  at("fresh").textContent = freshness(event);
  watch();
  clearTimeout(staleness);
  staleness = setTimeout(watch, STALE_MS + 1);
  if (heard_ms - drawn_ms > HEAT_MS) {
    drawn_ms = heard_ms;
    showWheel().catch((error) => (at("pending").textContent = error.message));
    showAudits().catch((error) => (at("audits-said").textContent = error.message));
  }
}

function watch() {
  const age_ms = performance.now() - heard_ms;
  const stale = age_ms > STALE_MS && !refused;
  document.body.classList.toggle("is-stale", stale);
  if (stale && at("stale").hidden) {
    const others = (last?.cluster?.nodes ?? []).filter((node) => node.node !== last.node && node.role);
    at("stale").replaceChildren(
      last === null
        ? "This node does not answer."
        : `Stale since ${clock(Date.now() - age_ms)}: ${last.node} does not answer. What you see is of then.`,
      ...(others.length ? [" Ask another node: "] : []),
      ...others.flatMap((node) => [link(node.admin, node.node), " "]),
    );
    at("fresh").textContent = "";
  }
  at("stale").hidden = !stale;
  if (age_ms > GIVE_UP_MS) {
    heard_ms = performance.now() - STALE_MS - 1;
    stream.abort();
  }
}

async function askToken() {
  const says = ["Changes need a token, and reads too where the operator wants it. It is kept in this tab."];
  const field = el("label", {}, "Token",
    el("input", { name: "token", type: "password", autocomplete: "off", required: true }));
  const use = async ({ token }) => {
    useToken(token.trim());
    stream.abort();
    showToken();
    return "It goes along with every request from now on.";
  };
  await confirm("Token", says, "Use it", use, [field]);
}

function showToken() {
  at("token-button").textContent = hasToken() ? "Token (set)" : "Token";
}

function onSubmit(id, act) {
  at(id).addEventListener("submit", (event) => {
    event.preventDefault();
    act(Object.fromEntries(new FormData(event.target, event.submitter)));
  });
}

at("token-button").addEventListener("click", askToken);
at("schedule-button").addEventListener("click", schedule);
onSubmit("look-up", ({ id }) => lookUp(id));
onSubmit("pending-list", (wanted) => list(wanted));
onSubmit("target", change);
onSubmit("dead-search", search);
showToken();
setInterval(watch, 250);
follow();
