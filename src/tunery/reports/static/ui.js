// Elements and numbers. Text always goes in as text: names of models and operators are strangers' words.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const NONE = "–";

const digits = (value, count = 3) => {
  if (value === 0) return "0";
  const decimals = count - 1 - Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(Math.max(decimals, 0), 6));
};

// Latencies of one column share a unit, so that they can be compared by their looks.
export function latencies(values) {
  const known = values.filter((value) => value > 0);
  const middle = known.length ? known.sort((a, b) => a - b)[Math.floor(known.length / 2)] : 1e-3;
  const [unit, factor] = middle < 1e-3 ? ["µs", 1e6] : middle < 1 ? ["ms", 1e3] : ["s", 1];
  return { unit, factor, show: (value) => (value === null || value === undefined ? NONE : digits(value * factor)) };
}

export const latency = (seconds) => {
  if (seconds === null || seconds === undefined) return NONE;
  const { unit, show } = latencies([seconds]);
  return `${show(seconds)} ${unit}`;
};

export const ratio = (before, after) => (before && after ? `${(before / after).toFixed(2)}×` : NONE);
export const percent = (share) => (share === null || share === undefined ? NONE : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);
export const count = (value) => (value ?? 0).toLocaleString("en").replaceAll(",", "\u202f");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  return power ? `${digits(value / 2 ** (10 * power))} ${["", "KiB", "MiB", "GiB", "TiB"][power]}` : `${value} B`;
}

export function energy(joules, modelled) {
  if (joules === null || joules === undefined) return NONE;
  const [unit, factor] = joules < 1e3 ? ["J", 1] : joules < 1e6 ? ["kJ", 1e3] : ["MJ", 1e6];
  return `${digits(joules / factor)} ${unit}${modelled ? " (modelled)" : ""}`;
}

export function money(amount, currency) {
  if (amount === null || amount === undefined) return NONE;
  const decimals = amount >= 1 || amount <= 0 ? 2 : Math.min(1 - Math.floor(Math.log10(amount)), 9);
  return `${amount.toFixed(decimals)} ${currency}`;
}

// Amounts of one column share currency and decimals.
export function amounts(rows) {
  const found = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  if (found.length !== 1) return { unit: "", show: moneys };
  const most = Math.max(...rows.map((row) => row[found[0]] ?? 0));
  const decimals = most >= 1 || most <= 0 ? 2 : Math.min(2 - Math.floor(Math.log10(most)), 9);
  return { unit: `, ${found[0]}`, show: (row) => (found[0] in row ? row[found[0]].toFixed(decimals) : NONE) };
}

export const moneys = (found) => Object.entries(found).map(([currency, amount]) => money(amount, currency)).join(" + ") || NONE;

const pad = (number) => String(number).padStart(2, "0");

export function clock(text) {
  const at = new Date(text);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function when(text) {
  const at = new Date(text);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return h("time", { datetime: text, title: `${day} ${clock(text)}`, class: "nowrap" },
    at.toDateString() === new Date().toDateString() ? clock(text) : `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}`);
}

export const state = (name) => h("span", { class: `state ${String(name).replace(/[^a-z]/g, "")}` }, name);
export const empty = (text) => h("p", { class: "empty" }, text);
export const note = (text, bad) => h("p", { class: bad ? "note bad" : "note", role: bad ? "alert" : null }, text);
export const heading = (text) => h("h1", { tabindex: "-1" }, text);

export const facts = (pairs) => h("dl", { class: "facts" },
  pairs.filter(Boolean).map(([name, value, big]) => h("div", {}, h("dt", {}, name), h("dd", { class: big && "big" }, value))));

// Columns: {head, cell(row), num, opt, name, bar, by(row)}; `opt` ones are left out on a narrow screen. With `sort`, columns
// that have `by` sort the rows: the button in their heads calls sort.to(head), and sort.head is the one in force.
export function table(label, columns, rows, nothing = "Nothing yet.", key = () => null, sort = null) {
  const kind = (column) => [column.num && "num", column.opt && "opt", column.name && "name", column.bar && "barcell"].filter(Boolean).join(" ") || null;
  if (!rows.length) return empty(nothing);
  return h("div", { class: "scroll", role: "region", "aria-label": label }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kind(column), "aria-sort": sort?.head === column.head ? (sort.down ? "descending" : "ascending") : null },
      sort && column.by ? h("button", { type: "button", class: "plain", onclick: () => sort.to(column.head) }, column.head) : column.head)))),
    h("tbody", {}, rows.map((row) => h("tr", { "data-key": key(row) }, columns.map((column) => h("td", { class: kind(column) }, column.cell(row) ?? NONE)))))));
}

export const bar = (share) => h("span", { class: "bar", style: { width: `${Math.max(0, Math.min(share || 0, 1)) * 100}%` } });

export function progress(share, label) {
  const part = Math.max(0, Math.min(share, 1));
  return h("span", { class: "track", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(100 * part) }, h("i", { style: { width: `${100 * part}%` } }));
}

// Makes an element hold these children. What is as before stays as it is, with focus, selection and scrolling.
export const replace = (element, ...children) => {
  const fresh = h("div", {}, ...children);
  morph(element, [...fresh.childNodes]);
  markScrolling();
};

// What is wider than the screen can be scrolled with the keyboard, too.
function markScrolling() {
  for (const box of document.querySelectorAll(".scroll")) {
    const wide = box.scrollWidth > box.clientWidth;
    if (wide) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
  }
}
window.addEventListener("resize", markScrolling);

const WHOLE = new Set(["FIGURE", "svg"]); // plots follow their own width

function morph(parent, fresh) {
  const keyed = new Map([...parent.children].filter((one) => one.dataset.key).map((one) => [one.dataset.key, one]));
  let at = parent.firstChild;
  for (const child of fresh) {
    const key = child.dataset?.key;
    const old = key ? keyed.get(key) : at;
    if (!old || old.nodeName !== child.nodeName || old.dataset?.key !== key || WHOLE.has(child.nodeName)) {
      parent.insertBefore(child, at);
      continue;
    }
    if (old === at) at = at.nextSibling;
    else parent.insertBefore(old, at);
    if (old.isEqualNode(child)) continue;
    if (old.nodeType !== Node.ELEMENT_NODE) old.data = child.data;
    else if (old.nodeName === "BUTTON" && old.textContent !== child.textContent) old.replaceWith(child);
    else {
      for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) {
        if (name === "style") old.style.cssText = child.style.cssText;
        else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      morph(old, [...child.childNodes]);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

let hiding;
export function say(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  status.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { status.hidden = true; }, 8000);
}

// A button that does one thing at a time, and says what went wrong.
export function action(label, work, kind) {
  const button = h("button", { type: "button", class: kind, onclick: async () => {
    button.disabled = true;
    try { await work(); } catch (error) { say(error.message); }
    button.disabled = false;
  } }, label);
  return button;
}

export const live = () => {
  const shown = h("span", { class: "live", role: "status" }, "connecting");
  return [shown, (is, why) => { shown.textContent = is ? "live" : why || "not connected, trying again"; }];
};
