// Asking the service. The token lives in this tab only, and goes with each request that these pages make; nothing else
// sends it: there is no cookie that another page, or a service on another port of the same machine, could use.

const KEY = "tunery.token";

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const logIn = (text) => sessionStorage.setItem(KEY, text);
export const logOut = () => sessionStorage.removeItem(KEY);

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function refusal(answer) {
  let text = `The service answers ${answer.status}.`;
  try {
    text = String((await answer.json()).detail || text);
  } catch { /* no problem document */ }
  return new Refused(answer.status, text);
}

async function send(path, options = {}) {
  const headers = { Authorization: `Bearer ${token()}`, ...options.headers };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The service does not answer; is it running?");
  }
  if (answer.status === 401) window.dispatchEvent(new Event("tunery-logged-out"));
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

export async function get(path) {
  return (await send(path)).json();
}

export async function post(path, body, headers = {}) {
  const json = { "Content-Type": "application/json", ...headers };
  return (await send(path, { method: "POST", headers: json, body: JSON.stringify(body ?? {}) })).json();
}

export const text = async (path) => (await send(path)).text();
export const remove = (path) => send(path, { method: "DELETE" });

export async function put(path, body) {
  return (await send(path, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
}

export async function download(path, name) {
  const url = URL.createObjectURL(await (await send(path)).blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// Uploads a file under its SHA-256, unless the service has it; returns the digest.
export async function upload(file, onShare) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  const digest = `sha256:${[...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  const path = `/v1/blobs/${digest}`;
  try {
    await send(path, { method: "HEAD" });
    return digest;
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  await new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch tells no progress of what it sends
    request.open("PUT", `${path}?name=${encodeURIComponent(file.name.slice(0, 200))}`);
    request.setRequestHeader("Authorization", `Bearer ${token()}`);
    request.upload.onprogress = (event) => event.lengthComputable && onShare(event.loaded / event.total);
    request.onerror = () => reject(new Refused(0, "The upload was cut; choose the file again."));
    request.onload = () => {
      if (request.status < 300) return resolve();
      let text = `The service answers ${request.status}.`;
      try { text = JSON.parse(request.responseText).detail || text; } catch { /* no problem document */ }
      reject(new Refused(request.status, text));
    };
    request.send(file);
  });
  return digest;
}

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

// Follows a page's stream: one connection, begun again when it breaks, and closed while nobody looks at the page.
// Calls onPart(name, data) for each part that is new, and onLive(true or false). Returns what ends it.
export function follow(path, onPart, onLive) {
  const ended = new AbortController();
  let connection = new AbortController();
  const onVisible = () => document.hidden && connection.abort();
  document.addEventListener("visibilitychange", onVisible);
  ended.signal.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", onVisible);
    connection.abort();
  });
  (async () => {
    let wait = 1000;
    while (!ended.signal.aborted) {
      if (document.hidden) {
        await new Promise((resolve) => {
          const seen = () => { if (!document.hidden || ended.signal.aborted) resolve(); };
          document.addEventListener("visibilitychange", seen);
          ended.signal.addEventListener("abort", resolve);
        });
        continue;
      }
      connection = new AbortController();
      try {
        const answer = await send(path, { signal: connection.signal });
        onLive(true);
        wait = 1000;
        await read(answer.body, onPart);
      } catch (error) {
        if (error.status >= 400 && error.status < 500) return onLive(false, error.message);
        if (ended.signal.aborted) return;
        if (error.name === "AbortError") continue;
        onLive(false);
        await pause(wait, ended.signal);
        wait = Math.min(wait * 2, 15_000);
      }
    }
  })();
  return () => ended.abort();
}

async function read(body, onPart) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("");
      if (!data) continue;
      const part = JSON.parse(data);
      onPart(part.name, part.data);
    }
  }
}
