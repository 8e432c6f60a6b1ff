// The frame: log in, the bar of pages, and which page the address names.

import { get, logIn, logOut, token } from "./api.js";
import * as hosts from "./hosts.js";
import * as job from "./job.js";
import * as jobs from "./jobs.js";
import * as compare from "./compare.js";
import * as create from "./new.js";
import * as operator from "./operator.js";
import * as operators from "./operators.js";
import * as people from "./people.js";
import { h, heading, note, replace, say } from "./ui.js";
import * as usage from "./usage.js";

const PAGES = [["jobs", "Jobs", jobs], ["new", "New job", create], ["operators", "Operators", operators],
  ["hosts", "Hosts", hosts], ["usage", "Usage", usage], ["people", "Accounts", people]];
const ONE = { compare, jobs: job, operators: operator };
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const who = document.getElementById("who");
let account = null;
let leave = () => {};
let visit = 0;

async function show() {
  const mine = ++visit;
  leave();
  leave = () => {};
  if (!token()) return showLogin();
  if (!account) {
    try {
      account = await get("/v1/me");
    } catch (error) {
      if (mine === visit) showLogin(error.status === 401 ? "" : error.message);
      return;
    }
  }
  const [name, rest] = location.hash.replace(/^#\/?/, "").split("/");
  const mayOpen = PAGES.filter(([key]) => key !== "people" || account.role === "admin");
  const page = (rest && ONE[name]) || (mayOpen.find(([key]) => key === name) ?? PAGES[0])[2];
  const current = name === "compare" ? "jobs" : name || "jobs";
  nav.hidden = false;
  replace(nav, mayOpen.map(([key, title]) => h("a", { href: `#/${key}`, "aria-current": key === current ? "page" : null }, title)));
  replace(who, h("span", {}, `${account.name} (${account.role})`),
    h("button", { type: "button", class: "plain", onclick: () => { logOut(); account = null; show(); } }, "Log out"));
  main.replaceChildren();
  try {
    const end = await page.open(main, { account, id: rest });
    if (mine !== visit) return end?.();
    leave = end ?? leave;
  } catch (error) {
    if (mine !== visit) return;
    if (error.status === 401) return;
    replace(main, heading("Not available"), note(error.message, true));
  }
  document.title = `${main.querySelector("h1")?.textContent ?? "tunery"} – tunery`;
  main.querySelector("h1")?.focus();
}

function showLogin(message = "") {
  nav.hidden = true;
  who.replaceChildren();
  document.title = "Log in – tunery";
  const field = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false",
    autocapitalize: "off", "aria-describedby": "token-help" });
  const failed = h("div", {}, message && note(message, true));
  const form = h("form", { class: "login", onsubmit: async (event) => {
    event.preventDefault();
    logIn(field.value.trim());
    try {
      account = await get("/v1/me");
      show();
    } catch (error) {
      logOut();
      replace(failed, note(error.message, true));
      field.focus();
    }
  } }, heading("Log in"), h("div", { class: "field" }, h("label", { for: "token" }, "Token"), field,
    h("small", { id: "token-help" }, "An administrator makes it: tunery accounts create NAME, or tunery accounts token NAME. It is kept in this tab until you log out or close it.")),
  failed, h("div", {}, h("button", { class: "primary" }, "Log in")));
  main.replaceChildren(form);
  field.focus();
}

window.addEventListener("hashchange", () => { if (location.hash !== "#main") show(); });
window.addEventListener("tunery-logged-out", () => {
  if (!token() || !account) return;
  logOut();
  account = null;
  leave();
  showLogin("The token has ended; enter another one.");
});
window.addEventListener("unhandledrejection", (event) => say(event.reason?.message ?? "Something failed."));
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
show();
