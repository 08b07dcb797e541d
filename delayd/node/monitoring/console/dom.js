// Elements of the page. Values become text nodes or attributes, never markup.

export const at = (id) => document.getElementById(id);

export function el(name, given = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key === "click") made.addEventListener(key, value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside.map((each) => (each instanceof Node ? each : String(each ?? ""))));
  return made;
}

// Pairs of a name and a value, for a <dl>.
export function figures(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

export function table(place, caption, names, rows) {
  place.replaceChildren(
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell))))),
  );
}

const two = (number) => String(number).padStart(2, "0");

export function day(ms) {
  const when = new Date(ms);
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
}

export function clock(ms) {
  const when = new Date(ms);
  return `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
}

export const time = (ms) => (ms ? `${day(ms)} ${clock(ms)}` : "");

export function duration(ms) {
  const s = Math.round(ms / 1000);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

export function bytes(count) {
  if (count == null) return "";
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, count)) / 3));
  return `${(count / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export const many = (count, noun) => `${count.toLocaleString()} ${noun}${count === 1 ? "" : "s"}`;

// Asks before something is done. `fields` are inputs; `act` gets their values, and what it returns
// or throws is shown. Resolves when the dialog is closed.
export function confirm(title, says, verb, act, fields = []) {
  const dialog = at("dialog");
  const told = el("p", { role: "status" });
  const close = el("button", { type: "button", click: () => dialog.close() }, "Close");
  const yes = el("button", { class: "danger" }, verb);
  const form = el(
    "form",
    {},
    el("h2", { id: "dialog-title" }, title),
    ...says.map((line) => el("p", {}, line)),
    ...fields,
    told,
    el("p", { class: "row" }, yes, close),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    yes.disabled = true;
    told.className = "";
    told.textContent = "Asking …";
    try {
      told.textContent = await act(Object.fromEntries(new FormData(form)));
      yes.remove();
    } catch (error) {
      told.className = "error";
      told.textContent = error.message;
      yes.disabled = false;
    }
    close.focus();
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  return new Promise((done) => {
    // Events of closing come later: this one may be of the question before.
    const ended = () => {
      if (dialog.open && form.isConnected) return;
      dialog.removeEventListener("close", ended);
      done();
    };
    dialog.addEventListener("close", ended);
  });
}
