// A list of what is pending, a page at a time.

import { ask } from "./api.js";
import { at, el, table, time } from "./dom.js";
import { lookUp } from "./message.js";

const ROWS = 50;
const LOOKS_MAX = 20; // a page may be empty, and still not be the last one

// Lists pending messages that match, from a cursor on; null: from the first.
export async function list(wanted, from = null) {
  const place = at("listed");
  try {
    const filters = Object.entries(wanted).filter(([, value]) => value !== "");
    let found = { messages: [], next: from };
    for (let look = 0; look < LOOKS_MAX && !found.messages.length; look++) {
      if (look && found.next === null) break;
      const cursor = found.next === null ? [] : [["cursor", found.next]];
      const asked = new URLSearchParams([...filters, ...cursor, ["limit", ROWS]]);
      found = await ask("GET", `/v1/pending?${asked}`);
    }
    place.replaceChildren(...shown(found, wanted));
  } catch (error) {
    place.replaceChildren(el("p", { class: "error" }, error.message));
  }
}

function shown({ messages, next }, wanted) {
  const made = el("table");
  table(
    made,
    messages.length ? "By the hour in which they are due" : "Nothing that is pending matches.",
    messages.length ? ["due", "target", "id", "group", "recurs", "attempts", "request"] : [],
    messages.map((each) => [
      time(each.resolved_ms ?? each.due_ms), each.topic, idOf(each), each.group,
      each.cron ? `${each.cron}, ${each.zone}` : each.local ? `${each.local}, ${each.zone}` : "",
      each.attempts || "", each.source,
    ]),
  );
  const more = el("button", { type: "button", click: () => list(wanted, next) }, "Next page");
  return [
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pending messages" }, made),
    ...(next === null ? [] : [el("p", { class: "row" }, more)]),
  ];
}

function idOf({ id }) {
  if (id === null) return "";
  const show = () => {
    at("look-up").elements.id.value = id;
    at("message-section").scrollIntoView();
    lookUp(id);
  };
  return el("button", { type: "button", "aria-label": `Look up ${id}`, click: show }, id);
}
