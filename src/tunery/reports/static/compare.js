// Two jobs side by side: how they stand, their curves, their operators.

import { follow } from "./api.js";
import { steps } from "./charts.js";
import { count, duration, h, heading, latencies, latency, NONE, ratio, replace, state, table } from "./ui.js";

export async function open(main, { id }) {
  const ids = id.split("-").slice(0, 2);
  const jobs = ids.map(() => ({}));
  const places = [0, 1, 2].map(() => h("section", {}));
  main.append(h("p", { class: "muted" }, h("a", { href: "#/jobs" }, "Jobs"), " / compare"), heading("Two jobs"), ...places);
  const name = ({ job }, number) => `${job?.network || job?.model || ids[number]} (${number ? "second" : "first"})`;

  function draw() {
    if (jobs.some(({ job }) => !job)) return;
    const facts = [
      ["Job", ({ job }) => h("a", { href: `#/jobs/${job.id}` }, job.id)], ["State", ({ job }) => state(job.state)],
      ["Compiled file", ({ gain }) => gain?.headline || NONE], ["Target", ({ job }) => job.target], ["Dialect", ({ job }) => job.dialect],
      ["Threads", ({ job }) => (job.threads ? String(job.threads) : "all cores")],
      ["Operators, untuned", ({ job }) => latency(job.before_s)], ["Operators, tuned", ({ job }) => latency(job.after_s)],
      ["Whole network", ({ gain }) => latency(gain?.whole_s)], ["ONNX Runtime", ({ gain }) => latency(gain?.onnxruntime_s)],
      ["Trials", ({ job }) => count(job.spend.trials)], ["Time", ({ job }) => duration(job.spend.wall_s)],
      ["Core time", ({ job }) => duration(job.spend.core_s)],
    ];
    replace(places[0], table("How they stand", [{ head: "", name: true, cell: ([what]) => what },
      ...jobs.map((one, number) => ({ head: name(one, number), cell: ([, cell]) => cell(one) }))], facts));
    const curves = jobs.map(({ gain }) => gain?.curve ?? []);
    const { unit, factor } = latencies(curves.flat().map((point) => point.latency_s));
    const [points, second] = curves.map((curve) => curve.map((point) => ({ x: point.at_s, y: point.latency_s * factor })));
    replace(places[1], points.length > 1 && second.length > 1 && [h("h2", {}, "Sum of the operators, each timed alone"),
      h("ul", { class: "legend" }, jobs.map((one, number) => h("li", {}, h("i", { class: `k${number}` }), name(one, number)))),
      steps({ points, second, xTitle: "time of the job", yTitle: `sum of the operators, ${unit}`, label: "The curves of both jobs." })].flat());
    const rows = new Map();
    jobs.forEach(({ operators = [] }, number) => operators.forEach((row) => {
      const key = `${row.kind} ${row.name}`;
      rows.set(key, { ...rows.get(key), key, [number]: row });
    }));
    const times = [...rows.values()];
    const { unit: each, show } = latencies(times.flatMap((row) => [row[0]?.after_s, row[1]?.after_s]));
    replace(places[2], h("h2", {}, "Operators"), table("Operators", [
      { head: "Operator", name: true, cell: (row) => (row[0] ?? row[1]).name },
      { head: `First, ${each}`, num: true, cell: (row) => show(row[0]?.after_s) },
      { head: `Second, ${each}`, num: true, cell: (row) => show(row[1]?.after_s) },
      { head: "First / second", num: true, cell: (row) => ratio(row[0]?.after_s, row[1]?.after_s) },
    ], times, "Neither has operators.", (row) => row.key));
  }

  const ends = ids.map((one, number) => follow(`/v1/live/jobs/${one}`, (part, data) => { jobs[number][part] = data; draw(); }, () => {}));
  return () => ends.forEach((end) => end());
}
