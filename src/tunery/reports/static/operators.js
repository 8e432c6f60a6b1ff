// Operators: the best that is known of each, by device and dialect.

import { get } from "./api.js";
import { action, count, h, heading, latencies, ratio, replace, table, when } from "./ui.js";

export async function open(main) {
  let found = [];
  let next = null;
  const text = h("input", { type: "search", id: "filter", autocomplete: "off" });
  const body = h("div", {});
  const more = h("div", {});
  main.append(h("div", { class: "title" }, heading("Operators")),
    h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); load(); } },
      h("label", { for: "filter" }, "Name or kind"), text, h("button", {}, "Find")), body, more);

  async function load(cursor = "") {
    const page = await get(`/v1/operators?limit=100&cursor=${cursor}&text=${encodeURIComponent(text.value)}`);
    found = cursor ? found.concat(page.operators) : page.operators;
    next = page.next;
    draw();
  }

  function draw() {
    replace(body, bests(found, text.value ? "No operator's name or kind holds this." : "No operator was measured yet."));
    replace(more, next && action("More operators", () => load(next)));
  }
  await load();
}

export function bests(found, nothing) {
  const { unit, show } = latencies(found.map((one) => one.best_s));
  return table("Operators", [
    { head: "Operator", name: true, cell: (one) => h("a", { href: `#/operators/${one.task}` }, one.name) },
    { head: "Kind", opt: true, cell: (one) => one.kind },
    { head: "Dialect", cell: (one) => one.dialect },
    { head: "Target", opt: true, cell: (one) => one.target },
    { head: "Device", opt: true, name: true, cell: (one) => one.device_name || one.device.slice(0, 8) },
    { head: `Untuned, ${unit}`, num: true, cell: (one) => show(one.baseline_s) },
    { head: `Best, ${unit}`, num: true, cell: (one) => show(one.best_s) },
    { head: "Gain", num: true, cell: (one) => ratio(one.baseline_s, one.best_s) },
    { head: "Timed", opt: true, cell: (one) => (one.best ? (one.final ? "in finals" : "in the search") : "nothing verified") },
    { head: "Measured", num: true, opt: true, cell: (one) => count(one.records) },
    { head: "Last", opt: true, cell: (one) => when(one.last_at) },
  ], found, nothing);
}
