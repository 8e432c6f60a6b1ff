// Jobs as they go: the latest first.

import { follow, get } from "./api.js";
import { action, count, duration, h, heading, latencies, live, NONE, progress, ratio, replace, state, table, when } from "./ui.js";

const WORK = new Set(["running", "queued"]);

export async function open(main, { account }) {
  const rows = new Map();
  const ways = new Map();
  let order = [];
  let older = [];
  let next = null;
  const [shown, isLive] = live();
  const body = h("div", {});
  const more = h("div", {});
  main.append(h("div", { class: "title" }, heading("Jobs"), shown,
    h("div", { class: "actions" }, h("a", { href: "#/new", class: "button" }, "New job"))), body, more);

  const admin = account.role === "admin";
  const filter = (name, element) => [h("label", { for: name.toLowerCase() }, name), element];
  const text = h("input", { type: "search", id: "search", autocomplete: "off", oninput: () => draw() });
  const stands = h("select", { id: "state", onchange: () => draw() }, ["all", "queued", "running", "paused", "stopped", "done", "failed", "cancelled"].map((one) => h("option", {}, one)));
  const pair = h("span", {});
  main.insertBefore(h("div", { class: "row", role: "search" }, filter("Search", text), filter("State", stands), pair), body);
  const chosen = new Set();
  const choose = (id) => { chosen.delete(id) || chosen.add(id); draw(); };
  const sort = { head: "", down: true, to: (head) => { Object.assign(sort, { head, down: sort.head === head ? !sort.down : true }); draw(); } };
  const fits = (job) => (stands.value === "all" || job.state === stands.value)
    && [job.id, job.network, job.model, job.account, job.kind, job.message, job.note, ...(job.tags ?? [])].join(" ").toLowerCase().includes(text.value.trim().toLowerCase());

  const before = (job) => ways.get(job.id)?.baseline_s ?? job.before_s;
  const after = (job) => ways.get(job.id)?.best_s ?? job.after_s;
  const columns = ({ unit, show }) => [
    { head: "Compare", opt: true, cell: (job) => h("input", { type: "checkbox", "aria-label": `Compare ${job.network || job.id}`, checked: chosen.has(job.id), onchange: () => choose(job.id) }) },
    { head: "Network", name: true, by: (job) => job.network || job.model, cell: (job) => [h("a", { href: `#/jobs/${job.id}` }, job.network || job.model || job.id), ...(job.tags ?? []).map((tag) => h("span", { class: "tag" }, tag))] },
    { head: "Kind", opt: true, cell: (job) => job.kind },
    { head: "State", cell: (job) => standing(job, ways.get(job.id)) },
    admin && { head: "Owner", opt: true, cell: (job) => job.account || NONE },
    { head: `Untuned, ${unit}`, num: true, opt: true, cell: (job) => show(before(job)) },
    { head: `Best, ${unit}`, num: true, by: after, cell: (job) => show(after(job)) },
    { head: "Gain", num: true, by: (job) => before(job) / after(job) || 0, cell: (job) => ratio(before(job), after(job)) },
    { head: "Trials", num: true, opt: true, by: (job) => ways.get(job.id)?.trials ?? job.spend.trials, cell: (job) => count(ways.get(job.id)?.trials ?? job.spend.trials) },
    { head: "Time", num: true, opt: true, by: (job) => elapsed(job, ways.get(job.id)), cell: (job) => duration(elapsed(job, ways.get(job.id))) },
    { head: "Time left", num: true, cell: (job) => (WORK.has(job.state) ? duration(timeLeft(ways.get(job.id))) : NONE) },
    { head: "Submitted", opt: true, by: (job) => job.created_at, cell: (job) => when(job.created_at) },
  ].filter(Boolean);

  let drawing = false;
  const draw = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const found = [...order.map((id) => rows.get(id)).filter(Boolean), ...older];
      const fitting = found.filter(fits);
      const parts = columns(latencies(found.map(after)));
      const by = parts.find((column) => column.head === sort.head)?.by;
      if (by) fitting.sort((a, b) => (sort.down ? -1 : 1) * ((by(a) ?? 0) > (by(b) ?? 0) ? 1 : (by(a) ?? 0) < (by(b) ?? 0) ? -1 : 0));
      const nothing = found.length ? "No job fits the search." : "No jobs yet. Submit one under New job, or with: tunery tune MODEL --server " + location.origin;
      replace(body, table("Jobs", parts, fitting, nothing, (job) => job.id, sort));
      replace(pair, chosen.size === 2 && h("a", { class: "button", href: `#/compare/${[...chosen].join("-")}` }, "Compare these two"));
    });
  };
  return follow("/v1/live/jobs", (name, data) => {
    if (name === "order") {
      order = data;
      if (order.length >= 50 && !more.firstChild) more.append(action("Older jobs", loadOlder));
    } else if (name.startsWith("job ")) rows.set(data.id, data);
    else ways.set(name.slice(9), data);
    draw();
  }, isLive);

  async function loadOlder() {
    const page = await get(`/v1/jobs?limit=50${next ? `&cursor=${encodeURIComponent(next)}` : ""}`);
    next = page.next;
    const known = new Set([...order, ...older.map((job) => job.id)]);
    older = older.concat(page.jobs.filter((job) => !known.has(job.id)));
    if (!next) more.replaceChildren();
    else if (!page.jobs.some((job) => !known.has(job.id))) return loadOlder();
    draw();
  }
}

export const timeLeft = (way) => (way?.remaining_s > 0 ? way.remaining_s : null); // none where the budget is used up

export const elapsed = (job, way) => (way && job.state !== "queued" ? way.elapsed_s + way.earlier_s : job.spend.wall_s);

// How far a job is: by its trials where they are limited, else by its time.
export function share(way) {
  if (!way) return null;
  if (way.trials_planned) return way.trials / way.trials_planned;
  if (way.remaining_s === null) return null;
  const gone = way.elapsed_s + way.earlier_s;
  return gone / (gone + Math.max(way.remaining_s, 0) || 1);
}

function standing(job, way) {
  const part = job.state === "running" ? share(way) : null;
  return h("div", {}, state(job.state), job.state === "queued" && (way?.current || job.message) && h("div", { class: "muted" }, way?.current || job.message), part !== null && progress(part, "How far the job is"));
}
