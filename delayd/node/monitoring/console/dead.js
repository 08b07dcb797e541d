// Dead letters: search, one with its record, redrive.

import { ask } from "./api.js";
import { at, confirm, el, many, table, time } from "./dom.js";

export async function search(wanted) {
  const place = at("letters");
  try {
    const filters = Object.entries(wanted).filter(([, value]) => value !== "");
    const found = await ask("GET", `/v1/dead?${new URLSearchParams([...filters, ["limit", "50"]])}`);
    const reasons = Object.entries(found.reasons).map(([reason, count]) => `${reason} ${count}`);
    const letters = el("table");
    table(
      letters,
      `${many(found.matching, "letter")}${reasons.length ? `: ${reasons.join(", ")}` : ""}` +
        (found.matching > found.letters.length ? `; the newest ${found.letters.length}` : ""),
      ["dead since", "reason", "target", "id", "source", "detail", "do"],
      found.letters.reverse().map((letter) => [
        time(letter.dead_ms), letter.reason, letter.topic, letter.id, letter.source, letter.detail,
        el("span", { class: "row" }, button("Show", letter, show), button("Redrive …", letter, redrive)),
      ]),
    );
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Letters found" };
    place.replaceChildren(el("div", scroll, letters), el("div", { id: "letter" }));
  } catch (error) {
    place.replaceChildren(el("p", { class: "error" }, error.message));
  }
}

const button = (text, letter, act) =>
  el("button", { type: "button", "aria-label": `${text} ${letter.source}`, click: () => act(letter) },
    text);

async function show(letter) {
  const place = at("letter");
  try {
    const whole = await ask("GET", `/v1/dead/${letter.source}`);
    place.replaceChildren(el("h3", {}, `Letter ${letter.source}`),
      el("pre", { tabindex: "0" }, JSON.stringify(whole, null, 2)));
  } catch (error) {
    place.replaceChildren(el("p", { class: "error" }, error.message));
  }
}

const outcome = ({ letters: [first] }) =>
  `${first.outcome}${first.detail ? `: ${first.detail}` : ""}${first.request ? ` (request ${first.request})` : ""}`;

async function redrive(letter) {
  const send = (given, dry_run) => ask("POST", "/v1/dead/redrive", {
    sources: [letter.source], ...(given.topic ? { topic: given.topic } : {}), dry_run,
  });
  const says = [`Letter ${letter.source} is dead because of ${letter.reason}. It goes out again once, ` +
    "whoever asks how often, and at once unless its request names a later time."];
  try {
    says.push(`What would come of it: ${outcome(await send({}, true))}.`);
  } catch (error) {
    says.push(`What would come of it cannot be said: ${error.message}`);
  }
  const other = el("label", {}, "Another target; empty: the same", el("input", { name: "topic" }));
  const act = async (given) => outcome(await send(given, false));
  await confirm(`Redrive ${letter.source}?`, says, "Redrive the letter", act, [other]);
}
