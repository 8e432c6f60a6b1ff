// For administrators: accounts with their tokens and uploads, and what workers have printed.

import { get, remove, text } from "./api.js";
import { action, bytes, count, empty, h, heading, NONE, replace, state, table, when } from "./ui.js";

export async function open(main, { id }) {
  if (id) return account(main, decodeURIComponent(id));
  const found = await Promise.all((await get("/v1/accounts")).map(async (one) => ({ ...one, ...(await holdings(one.name)) })));
  const logs = await get("/v1/logs");
  const tail = h("div", {});
  const show = async (name) => replace(tail, h("h3", {}, name), h("pre", { class: "mono scroll", tabindex: "0" }, (await text(`/v1/logs/${name}`)) || "It has printed nothing."));
  main.append(h("div", { class: "title" }, heading("Accounts")), table("Accounts", [
    { head: "Account", name: true, cell: (one) => h("a", { href: `#/people/${encodeURIComponent(one.name)}` }, one.name) },
    { head: "Role", cell: (one) => one.role }, { head: "State", cell: (one) => state(one.state) },
    { head: "Share", num: true, opt: true, cell: (one) => String(one.weight) },
    { head: "Tokens", num: true, cell: (one) => count(one.tokens.length) },
    { head: "Uploads", num: true, opt: true, cell: (one) => count(one.uploads.length) },
    { head: "Uploaded", num: true, cell: (one) => bytes(sum(one.uploads)) },
    { head: "Of at most", num: true, opt: true, cell: (one) => (one.upload_bytes === null ? NONE : bytes(one.upload_bytes)) },
  ], found), h("h2", {}, "Logs of the workers"), table("Logs", [
    { head: "Worker", name: true, cell: (one) => one.name.replace(/\.log$/, "") },
    { head: "Printed", num: true, cell: (one) => bytes(one.size_bytes) }, { head: "Last", opt: true, cell: (one) => when(one.at) },
    { head: "Show", cell: (one) => action("Show", () => show(one.name), "plain") },
  ], logs, "No worker runs on this machine."), tail);
}

const sum = (uploads) => uploads.reduce((all, one) => all + one.size_bytes, 0);

async function holdings(name) {
  const [tokens, uploads] = await Promise.all([get(`/v1/accounts/${name}/tokens`), get(`/v1/blobs?account=${name}`)]);
  return { tokens, uploads };
}

async function account(main, name) {
  const body = h("div", {});
  main.append(h("p", { class: "muted" }, h("a", { href: "#/people" }, "Accounts")), h("div", { class: "title" }, heading(name)), body);
  const load = async () => {
    const { tokens, uploads } = await holdings(name);
    replace(body, h("h2", {}, "Tokens"), table("Tokens", [
      { head: "Token", name: true, cell: (one) => one.label || one.id }, { head: "Role", cell: (one) => one.role },
      { head: "Made", opt: true, cell: (one) => when(one.created_at) },
      { head: "Ends", cell: (one) => (one.expires_at ? when(one.expires_at) : "never") },
      { head: "End it", cell: (one) => action("End", async () => { await remove(`/v1/accounts/${name}/tokens/${one.id}`); await load(); }, "plain") },
    ], tokens, "It has no token."), h("h2", {}, `Uploads, ${bytes(sum(uploads))} in all`), uploads.length ? table("Uploads", [
      { head: "File", name: true, cell: (one) => one.name }, { head: "Size", num: true, cell: (one) => bytes(one.size_bytes) },
      { head: "Digest", opt: true, cell: (one) => h("span", { class: "mono" }, one.digest.slice(7, 19)) },
    ], uploads) : empty("It has uploaded nothing."));
  };
  await load();
}
