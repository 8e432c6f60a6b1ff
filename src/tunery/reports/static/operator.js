// One operator: its candidates, the best one's parameters, where else it is used, and its history over devices.

import { get } from "./api.js";
import { scatter, steps } from "./charts.js";
import { bests } from "./operators.js";
import { duration, empty, facts, h, heading, latencies, latency } from "./ui.js";

export async function open(main, { id }) {
  const found = await get(`/v1/operators/${id}`);
  const timed = found.candidates.filter((one) => one.outcome === "ok" && one.latency_s > 0);
  main.append(h("p", { class: "muted" }, h("a", { href: "#/operators" }, "Operators"), " / ", h("span", { class: "mono" }, id)),
    h("div", { class: "title" }, heading(found.name)),
    facts([["Kind", found.kind], ["Networks that hold it", found.networks.join(", ") || "none that is known here"],
      ["Measured here", `${found.candidates.length} candidates, ${timed.length} of them right and fast enough to be timed`]]),
    h("h2", {}, "Measured time by what the cost model expected"), points(timed),
    h("h2", {}, "Best so far, on each device"), history(timed, found.everywhere),
    h("h2", {}, "On all devices and in all dialects"), bests(found.everywhere),
    h("h2", {}, "Parameters of the best"),
    found.parameters ? h("pre", { class: "mono scroll", tabindex: "0" }, pretty(found.parameters)) : empty("Nothing verified is known of it."));
}

function points(timed) {
  const scored = timed.filter((one) => one.score !== null);
  if (!scored.length) return empty("No measured candidate was scored by a cost model.");
  const { unit, factor } = latencies(scored.map((one) => one.latency_s));
  const best = Math.min(...scored.map((one) => one.latency_s));
  return scatter({ points: scored.map((one) => ({ x: one.score, y: one.latency_s * factor, chosen: one.latency_s === best })),
    xTitle: "score of the cost model, higher is expected to be faster", yTitle: `measured time, ${unit}`,
    label: `${scored.length} candidates by the cost model's score; the fastest takes ${latency(best)}.` });
}

function history(timed, everywhere) {
  const names = new Map(everywhere.map((one) => [one.device, one.device_name]));
  const drawn = [...new Set(timed.map((one) => one.device))].map((device) => {
    const mine = timed.filter((one) => one.device === device);
    const { unit, factor } = latencies(mine.map((one) => one.latency_s));
    const began = Date.parse(mine[0].at);
    let best = Infinity;
    const line = mine.map((one) => ({ x: (Date.parse(one.at) - began) / 1000, y: (best = Math.min(best, one.latency_s)) * factor }));
    const name = names.get(device) || device.slice(0, 8);
    return h("div", {}, h("h3", {}, name), steps({ points: line, xTitle: "time since the first measurement", yTitle: `best, ${unit}`,
      label: `On ${name} the best falls from ${latency(mine[0].latency_s)} to ${latency(best)} within ${duration(line.at(-1).x)}.` }));
  });
  return drawn.length ? h("div", {}, drawn) : empty("Nothing was timed yet.");
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 1); } catch { return text; }
}
