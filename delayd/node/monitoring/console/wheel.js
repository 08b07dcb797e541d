// What is pending, as a heat map of days and hours in this machine's zone.

import { ask } from "./api.js";
import { at, day, el, many } from "./dom.js";

export const HEAT_MS = 10000;
const DAYS_MAX = 60;
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 0 });

export async function showWheel() {
  const counts = await ask("GET", "/v1/pending/counts");
  const topics = Object.entries(counts.topics).sort((a, b) => b[1] - a[1]);
  const named = topics.slice(0, 10).map(([name, count]) => `${name} ${count.toLocaleString()}`);
  at("pending").textContent =
    `${many(counts.total, "message")} pending${named.length ? `: ${named.join(", ")}` : ""}` +
    (topics.length > 10 ? `, and ${many(topics.length - 10, "other target")}` : "");
  const days = new Map([[day(Date.now()), new Array(24).fill(0)]]);
  for (const { from_ms, messages } of counts.hours) {
    const name = day(from_ms);
    if (!days.has(name)) days.set(name, new Array(24).fill(0));
    days.get(name)[new Date(from_ms).getHours()] += messages;
  }
  draw([...days].sort().slice(0, DAYS_MAX), days.size);
}

function draw(days, count) {
  const most = Math.max(1, ...days.flatMap(([, hours]) => hours));
  const hours = [...Array(24).keys()];
  const said = count > DAYS_MAX ? `, the first ${DAYS_MAX} of ${count} days with messages` : "";
  at("heat").replaceChildren(
    el("caption", {}, `Messages by the hour in which they are due${said}`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "day"),
      ...hours.map((hour) => el("th", { scope: "col" }, hour)))),
    el("tbody", {}, ...days.map(([name, counts]) =>
      el("tr", {}, el("th", { scope: "row" }, name), ...counts.map((each) => cell(each, most))))),
  );
}

function cell(count, most) {
  // By the logarithm: an hour of ten is seen beside one of a million.
  const warm = count ? 20 + (80 * Math.log(count + 1)) / Math.log(most + 1) : 0;
  const made = el("td", { class: warm > 55 ? "hot" : null }, count ? short.format(count) : "");
  made.style.setProperty("--warm", `${warm}%`);
  return made;
}

