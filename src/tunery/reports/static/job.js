// One job: how it goes, what it gains for what it costs, its operators, its stages, its log.

import { download, follow, post, put } from "./api.js";
import { gantt, steps } from "./charts.js";
import { elapsed, share, timeLeft } from "./jobs.js";
import { action, bar, clock, count, duration, energy, facts, h, heading, latencies, latency, live, money, NONE, note, percent, progress, ratio, replace, say, state, table, when } from "./ui.js";

const WORK = ["running", "queued"];
const DRAWN = { gain: ["top", "networks", "curve"], answer: ["answer"], operators: ["operators"], stages: ["stages"], log: ["log"] };

export async function open(main, { account, id }) {
  const parts = { log: [] };
  const mayAct = account.role !== "reader";
  const [shown, isLive] = live();
  const title = heading(`Job ${id}`);
  const standing = h("span", {});
  const actions = h("div", { class: "actions" });
  const places = Object.fromEntries(["top", "curve", "networks", "operators", "answer", "stages", "facts", "note", "log"].map((name) => [name, h("section", {})]));
  main.append(h("p", { class: "muted" }, h("a", { href: "#/jobs" }, "Jobs"), " / ", h("span", { class: "mono" }, id)),
    h("div", { class: "title" }, title, standing, shown, actions), ...Object.values(places));
  let against = "at_s";
  const written = h("textarea", { id: "note", rows: "3", maxlength: "4000" });
  const tags = h("input", { id: "tags", autocomplete: "off", "aria-describedby": "tags-help" });
  const write = async () => {
    await put(`/v1/jobs/${id}/note`, { note: written.value, tags: tags.value.split(",").map((one) => one.trim()).filter(Boolean) });
    say("Kept.");
  };
  const noted = ({ note: text, tags: own }) => {
    if (!mayAct) return replace(places.note, (text || own.length > 0) && [h("h2", {}, "Note"), note([text, own.join(", ")].filter(Boolean).join(" – "))]);
    if (places.note.firstChild) return; // a person may be writing
    [written.value, tags.value] = [text, own.join(", ")];
    places.note.append(h("h2", {}, "Note"), h("div", { class: "field" }, h("label", { for: "note" }, "What is to be remembered of it"), written),
      h("div", { class: "field" }, h("label", { for: "tags" }, "Tags"), tags, h("small", { id: "tags-help" }, "Words with commas between them; the list of jobs finds them.")),
      h("div", {}, action("Keep the note", write)));
  };

  const waiting = new Set();
  const draw = (...names) => {
    if (!waiting.size) requestAnimationFrame(() => { const now = [...waiting]; waiting.clear(); now.forEach((name) => DRAW[name]()); });
    names.forEach((name) => waiting.add(name));
  };
  const DRAW = {
    top() {
      const { job, progress: told, gain } = parts;
      if (!job) return;
      const way = job.state === "queued" ? null : told; // of one that waits it says behind how many
      title.textContent = job.network || job.model || `Job ${id}`;
      document.title = `${title.textContent} – tunery`;
      if (job.tags) noted(job); // a report that was written has none
      replace(standing, state(job.state), job.state === "queued" && told?.current && ` ${told.current}`);
      replace(actions, buttons(job));
      const before = way?.baseline_s ?? job.before_s;
      const after = way?.best_s ?? job.after_s;
      const part = WORK.includes(job.state) ? share(way) : null;
      const left = Object.entries(job.remaining).filter(([, amount]) => amount > 0).map(([kind, amount]) => limit(kind, amount, job.spend.currency)).join(", ");
      replace(places.top,
        part !== null && h("div", {}, progress(part, "How far the job is"), h("p", { class: "muted" }, `${way.phase}${way.current ? ` ${way.current}` : ""}`)),
        gain?.headline && note(gain.headline),
        job.message && job.state !== "running" && note(job.message, job.state === "failed"),
        facts([
          before !== null && ["Operators, untuned", latency(before), true],
          after !== null && [WORK.includes(job.state) ? "Operators, so far" : "Operators, tuned", latency(after), true],
          gainOf(gain),
          WORK.includes(job.state) && ["Time left", duration(timeLeft(way)), true],
        ]));
      replace(places.facts, h("h2", {}, "The job"),
        facts([
          ["Kind", job.kind], ["Owner", job.account || NONE], ["Model", job.model || NONE], ["Target", job.target],
          ["Threads", job.threads ? String(job.threads) : "all cores"], ["Dialect", job.dialect], ["Submitted", when(job.created_at)],
          ["Time", duration(elapsed(job, way))], ["Trials", count(way?.trials ?? job.spend.trials)],
          ["Core time", duration((way?.spend ?? job.spend).core_s)],
          ["Energy", energy((way?.spend ?? job.spend).joules, (way?.spend ?? job.spend).modelled)],
          ["Money", money((way?.spend ?? job.spend).money, (way?.spend ?? job.spend).currency)],
          left && ["Left of the budget", left],
        ]));
    },
    networks() {
      const { whole_s, onnxruntime_s, times } = parts.gain ?? {};
      if (!whole_s || !onnxruntime_s || !times) return replace(places.networks);
      const { unit, show } = latencies([whole_s, onnxruntime_s]);
      const most = Math.max(whole_s, onnxruntime_s);
      replace(places.networks, h("h2", {}, "The whole network, timed in turns"), table("The whole network", [
        { head: "Run by", name: true, cell: ([name]) => name }, { head: `Median, ${unit}`, num: true, cell: ([, seconds]) => show(seconds) },
        { head: "Of the slower", bar: true, cell: ([, seconds]) => bar(seconds / most) },
      ], [["The compiled file", whole_s], ["ONNX Runtime", onnxruntime_s]]));
    },
    answer() {
      const rows = Object.entries(parts.answer ?? {});
      if (!rows.length) return replace(places.answer);
      replace(places.answer, h("h2", {}, "Answer"), table("Answer", [
        { head: "What", name: true, cell: ([name]) => name },
        { head: "Value", cell: ([, value]) => (typeof value === "string" ? value : JSON.stringify(value)).slice(0, 2000) },
      ], rows));
    },
    curve() {
      const points = parts.gain?.curve ?? [];
      if (points.length < 2) return replace(places.curve);
      const { unit, factor } = latencies(points.map((point) => point.latency_s));
      const choose = (key, text) => h("button", { type: "button", "aria-pressed": String(against === key), onclick: () => { against = key; draw("curve"); } }, text);
      replace(places.curve, h("div", { class: "row" }, h("h2", {}, "Sum of the operators, each timed alone"),
        h("div", { class: "segments", role: "group", "aria-label": "What the curve is drawn against" }, choose("at_s", "over time"), choose("paid_s", "over worker time"))),
      steps({
        points: points.map((point) => ({ x: point[against], y: point.latency_s * factor })), xTitle: against === "at_s" ? "time of the job" : "worker time paid",
        yTitle: `sum of the operators, ${unit}`,
        label: `The sum of the operators' latencies falls from ${latency(points[0].latency_s)} to ${latency(points.at(-1).latency_s)} within ${duration(points.at(-1)[against])}.`,
      }));
    },
    operators() {
      const rows = parts.operators ?? [];
      if (!rows.length) return replace(places.operators);
      const { unit, show } = latencies(rows.map((row) => row.after_s ?? row.before_s));
      const compared = rows.some((row) => row.onnxruntime_s !== null);
      replace(places.operators, h("h2", {}, "Operators, by their share of the network"), table("Operators", [
        { head: "Operator", name: true, cell: (row) => h("div", {}, row.name, row.note && h("div", { class: "muted" }, row.note)) },
        { head: "Kind", opt: true, cell: (row) => row.kind },
        { head: "Calls", num: true, opt: true, cell: (row) => count(row.calls) },
        { head: "Share", num: true, cell: (row) => percent(row.share) },
        { head: "Of the network", bar: true, cell: (row) => bar(row.share) },
        { head: `Before, ${unit}`, num: true, cell: (row) => show(row.before_s) },
        { head: `After, ${unit}`, num: true, cell: (row) => show(row.after_s) },
        compared && { head: `ONNX Runtime, ${unit}`, num: true, opt: true, cell: (row) => show(row.onnxruntime_s) },
        { head: "Gain", num: true, cell: (row) => ratio(row.before_s, row.after_s) },
        { head: "Measured", num: true, opt: true, cell: (row) => count(row.measured) },
        { head: "Outcomes", opt: true, cell: (row) => outcomes(row.outcomes) },
      ].filter(Boolean), rows));
    },
    stages() {
      const spans = parts.stages ?? [];
      if (!spans.length) return replace(places.stages);
      const kinds = [...new Set(spans.map((span) => span.kind))].sort();
      replace(places.stages, h("h2", {}, "Stages"), gantt({ spans, kinds,
        label: `${spans.length} stages on ${new Set(spans.map((span) => span.lane)).size} workers: ${kinds.join(", ")}.` }));
    },
    log() {
      replace(places.log, h("h2", {}, "Log"), parts.log.length
        ? h("ol", { class: "log", tabindex: "0", "aria-label": "Log" }, parts.log.toSorted((a, b) => (new Date(b.at) - new Date(a.at))).map((line) => h("li", {}, h("time", { datetime: line.at }, clock(line.at)), h("span", {}, line.text))))
        : note("Nothing has happened yet."));
    },
  };

  return follow(`/v1/live/jobs/${id}`, (name, data) => {
    parts[name] = data;
    draw(...(DRAWN[name] ?? ["top"]));
  }, isLive);

  function buttons(job) {
    const act = (verb) => post(`/v1/jobs/${id}:${verb}`);
    const found = [];
    if (job.has_file) {
      found.push(action("Download", () => download(`/v1/jobs/${id}/file`, `${safe(job.network || "network")}.tunery`), "primary"));
    }
    if (!mayAct) return found;
    if (job.state === "done" && job.resumable && !job.has_file) {
      found.push(action("Compile", async () => { location.hash = `#/jobs/${(await post(`/v1/jobs/${id}:compile`)).id}`; }, "primary"));
    }
    if (WORK.includes(job.state)) found.push(action("Pause", () => act("pause")));
    if (["paused", "stopped", "failed"].includes(job.state)) found.push(action("Resume", () => act("resume")));
    if ([...WORK, "paused", "stopped"].includes(job.state)) {
      found.push(action("Cancel", async () => {
        if (!window.confirm("Cancel this job for good? What it has measured is kept.")) return;
        await act("cancel");
        say("The job is cancelled.");
      }));
    }
    return found;
  }
}

// Like with like: networks with networks, and sums of operators with such sums.
function gainOf(gain) {
  if (gain?.times) return ["Against ONNX Runtime", ratio(gain.times, 1), true]; // as the headline has it
  return gain?.first_s ? ["Since all were verified", ratio(gain.first_s, gain.after_s), true] : null;
}

const safe = (name) => name.replace(/[^\w.-]+/g, "_").slice(0, 80);
const outcomes = (found) => Object.entries(found).filter(([, number]) => number).map(([name, number]) => `${count(number)} ${name}`).join(", ") || NONE;

function limit(kind, amount, currency) {
  if (kind === "seconds") return duration(amount);
  if (kind === "joules") return energy(amount);
  if (kind === "money") return money(amount, currency);
  return `${count(amount)} ${kind}`;
}
