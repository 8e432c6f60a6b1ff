// Hosts and devices as they are now.

import { follow } from "./api.js";
import { bytes, count, duration, h, heading, live, NONE, replace, state, table, when } from "./ui.js";

export async function open(main) {
  const [shown, isLive] = live();
  const hosts = h("div", {});
  const devices = h("div", {});
  main.append(h("div", { class: "title" }, heading("Hosts and devices"), shown), h("h2", {}, "Hosts"), hosts, h("h2", {}, "Devices"), devices);
  return follow("/v1/live/hosts", (name, data) => {
    if (name === "hosts") replace(hosts, hostTable(data));
    else replace(devices, deviceTable(data));
  }, isLive);
}

function hostTable(found) {
  return table("Hosts", [
    { head: "Host", name: true, cell: (host) => h("div", {}, host.name, host.node && h("div", { class: "muted" }, host.node)) },
    { head: "State", cell: (host) => h("div", {}, state(host.state), host.trouble && h("div", { class: "bad" }, host.trouble)) },
    { head: "Cores busy", num: true, cell: (host) => (host.granted ? `${host.busy} of ${host.granted}` : NONE) },
    { head: "Load, 1 min", num: true, cell: (host) => (host.load === null ? NONE : host.load.toFixed(2)) },
    { head: "Others' cores", num: true, cell: (host) => (host.others === null ? NONE : host.others.toFixed(1)) },
    { head: "Memory free", num: true, opt: true, cell: (host) => bytes(host.free_bytes) },
    { head: "Memory", num: true, opt: true, cell: (host) => (host.memory_bytes ? bytes(host.memory_bytes) : NONE) },
    { head: "Waiting stages", cell: (host) => Object.entries(host.queue).map(([kind, number]) => `${count(number)} ${kind}`).join(", ") || (host.state === "up" ? "none" : NONE) },
    { head: "Builds", opt: true, cell: (host) => (host.builds ? "yes" : "no") },
    { head: "System", opt: true, name: true, cell: (host) => host.system || NONE },
  ], found);
}

function deviceTable(found) {
  return table("Devices", [
    { head: "Device", name: true, cell: (device) => h("div", {}, String(device.facts.name ?? NONE), h("div", { class: "muted mono" }, device.fingerprint.slice(0, 12))) },
    { head: "Host", cell: (device) => device.host || "elsewhere" },
    { head: "Kind", opt: true, cell: (device) => String(device.facts.kind ?? NONE) },
    { head: "Cores", num: true, opt: true, cell: (device) => String(device.facts.cores ?? NONE) },
    { head: "Waiting", num: true, cell: (device) => count(device.queue) },
    { head: "Calibration", name: true, cell: (device) => calibrations(device.calibrations) },
    { head: "Last seen", cell: (device) => when(device.last_seen) },
  ], found, "Nothing was measured yet: a device is known from its first measurement on.");
}

function calibrations(found) {
  if (!found.length) return "none: one measurement at a time";
  return h("div", {}, found.map((one) => h("div", {},
    `${one.dialect}, ${one.threads} ${one.threads === 1 ? "thread" : "threads"}: ` +
    (Object.entries(one.degrees).map(([kind, degree]) => `${degree} at once (${kind})`).join(", ") || "one at a time"),
    h("span", { class: "muted" }, `, ${duration((Date.now() - new Date(one.made_at)) / 1000)} ago`))));
}
