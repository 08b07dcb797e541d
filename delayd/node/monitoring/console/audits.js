// Audits: what each said, and its report.

import { ask } from "./api.js";
import { at, duration, el, many, table, time } from "./dom.js";

const OLD_MS = 26 * 3600 * 1000; // one each night, and two hours for it

const foundIn = ({ found }) =>
  Object.entries(found).map(([fault, count]) => `${fault} ${count.toLocaleString()}`).join(", ");
const verdictOf = (audit) => (audit.verdict === "ok" ? "ok" : "not ok");

export async function showAudits() {
  const audits = await ask("GET", "/v1/audits");
  at("audits-said").replaceChildren(...said(audits[0]));
  const links = audits.map(report);
  const place = at("audits");
  // While nothing is new, whoever stands on a link stays there; only its ticket is renewed.
  const before = [...place.querySelectorAll("a")];
  const same = before.length === links.length && links.every((each, n) => each.id === before[n].id && each.href);
  if (same && place.childElementCount) {
    links.forEach((each, n) => (before[n].href = each.href));
    return;
  }
  table(
    place,
    audits.length ? `${many(audits.length, "audit")}, the newest first` : "",
    audits.length ? ["made", "verdict", "findings", "messages", "nodes compared", "not judged", "took", "release", "report"] : [],
    audits.map((audit, n) => [
      time(audit.made_ms), verdictOf(audit), foundIn(audit) || "none", audit.messages.toLocaleString(),
      `${audit.compared} of ${audit.nodes}`, audit.notes ? many(audit.notes, "note") : "",
      duration(audit.wall_ms), audit.version, links[n],
    ]),
  );
}

function said(last) {
  if (!last) return ["No audit is known to this node. ", el("code", {}, "delayd audit --etcd URL"), " makes one."];
  const age_ms = Date.now() - last.made_ms;
  const old = age_ms > OLD_MS ? `: longer ago than ${duration(OLD_MS)}, so of what came since it says nothing` : "";
  const findings = foundIn(last);
  return [
    `The last audit was ${verdictOf(last)}${findings ? ` (${findings})` : ""}, ${duration(age_ms)} ago${old}.`,
  ];
}

// A token for some targets has no link: a report is of all.
function report({ id, made_ms, page }) {
  if (page === null) return el("span", { id: `audit-${id}` }, "");
  const name = `Report of ${time(made_ms)}`;
  const how = { id: `audit-${id}`, href: page, target: "_blank", rel: "noopener noreferrer" };
  return el("a", { ...how, "aria-label": name }, "Report");
}
