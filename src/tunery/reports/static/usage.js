// What accounts have used in a month, what of it was in vain, and for administrators what accounts did.

import { get } from "./api.js";
import { amounts, bar, count, duration, energy, h, heading, NONE, percent, replace, table, when } from "./ui.js";

export async function open(main) {
  const body = h("div", {});
  const months = h("select", { id: "month", onchange: () => load() }, lastMonths().map((month) => h("option", {}, month)));
  main.append(h("div", { class: "title" }, heading("Usage"),
    h("div", { class: "actions row" }, h("label", { for: "month" }, "Month"), months)), body);

  async function load() {
    const found = await get(`/v1/usage/${months.value}`);
    const log = (await get("/v1/me")).role === "admin" ? await get("/v1/audit").catch(() => null) : null;
    replace(body, accounts(found), found.flatMap(parts), log && [h("h2", {}, "Latest actions"), actions(log)]);
  }
  await load();
}

function lastMonths() {
  const now = new Date();
  return Array.from({ length: 12 }, (_, back) => {
    const at = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1));
    return at.toISOString().slice(0, 7);
  });
}

const NO_CANDIDATE = "of no single candidate"; // what the service calls imports, proposals, learning and the like
const modelled = (rows) => (rows.some((row) => row.modelled) ? "Energy, modelled" : "Energy");

function accounts(found) {
  const { unit, show } = amounts(found.map((one) => one.total.money));
  return table("Accounts", [
    { head: "Account", name: true, cell: (one) => one.account || "no account" },
    { head: "Jobs", num: true, cell: (one) => count(one.jobs) },
    { head: "Candidates", num: true, cell: (one) => count(one.total.count) },
    { head: "Worker time", num: true, opt: true, cell: (one) => duration(one.total.worker_s) },
    { head: "Core time", num: true, cell: (one) => duration(one.total.core_s) },
    { head: modelled(found.map((one) => one.total)), num: true, opt: true, cell: (one) => energy(one.total.joules) },
    { head: `Money${unit}`, num: true, cell: (one) => show(one.total.money) },
    { head: "In vain", num: true, cell: (one) => percent(one.vain_share) },
  ], found, "No job was submitted in this month.");
}

const actions = (log) => table("Latest actions", [
  { head: "When", cell: (one) => when(one.at) },
  { head: "Account", name: true, cell: (one) => one.account },
  { head: "From", opt: true, cell: (one) => one.source },
  { head: "Action", cell: (one) => one.action },
  { head: "Answer", num: true, cell: (one) => String(one.status) },
], log, "Nobody has done anything but look.");

function parts(one) {
  const most = Math.max(...one.outcomes.map((row) => row.core_s), 0) || 1;
  const all = one.total.core_s || 1;
  const { unit, show } = amounts(one.outcomes.map((row) => row.money));
  return [
    h("h2", {}, `${one.account || "no account"}: by outcome of the candidates`),
    table(`Outcomes of ${one.account}`, [
      { head: "Outcome", name: true, cell: (row) => row.name },
      { head: "Candidates", num: true, cell: (row) => (row.name === NO_CANDIDATE ? NONE : count(row.count)) },
      { head: "Core time", num: true, cell: (row) => duration(row.core_s) },
      { head: "Share", num: true, opt: true, cell: (row) => percent(row.core_s / all) },
      { head: modelled(one.outcomes), num: true, opt: true, cell: (row) => energy(row.joules) },
      { head: `Money${unit}`, num: true, cell: (row) => show(row.money) },
      { head: "Of the largest", bar: true, cell: (row) => bar(row.core_s / most) },
    ], one.outcomes, "Nothing was spent."),
    one.vain_share !== null && h("p", { class: "muted" }, `${percent(one.vain_share)} of the core time for candidates went into some that were not the best of their operator when they were measured.`),
  ].filter(Boolean);
}
