// A new job: a model, what it consists of, and what tuning it may cost.

import { get, post, upload } from "./api.js";
import { bytes, count, h, heading, note, progress, replace, table } from "./ui.js";

const MOST = 1 << 30; // a browser hashes a file in its memory

export async function open(main, { account }) {
  let model = null;
  let name = "";
  let looking = 0;
  const field = (label, control, help) => {
    const id = `field-${label.toLowerCase().replace(/[^a-z]+/g, "-")}`;
    control.id = id;
    if (help) control.setAttribute("aria-describedby", `${id}-help`);
    return h("div", { class: "field" }, h("label", { for: id }, label), control, help && h("small", { id: `${id}-help` }, help));
  };
  const file = h("input", { type: "file", id: "file", accept: ".onnx,.pt2" });
  const drop = h("label", { class: "drop", for: "file" }, h("strong", {}, "Drop an ONNX file here, or choose one"), h("br"),
    h("span", { class: "muted" }, "also .pt2 with weights inside"), file);
  const zoo = h("input", { placeholder: "zoo:resnet18", autocomplete: "off", spellcheck: "false" });
  const shapes = h("input", { placeholder: "input=1x3x224x224", autocomplete: "off", spellcheck: "false" });
  const target = h("input", { value: "native", autocomplete: "off", spellcheck: "false" });
  const threads = h("input", { type: "number", min: 0, max: 1024, value: 0 });
  const budget = h("input", { value: "10min", autocomplete: "off", spellcheck: "false" });
  const wanted = h("input", { type: "number", min: 0, step: "any", placeholder: "none" });
  const priority = h("input", { type: "number", min: 0, max: 10, value: 0 });
  const dialect = h("input", { value: "metaschedule", autocomplete: "off", spellcheck: "false" });
  const found = h("div", { role: "status" });
  const failed = h("div", {});
  const submit = h("button", { class: "primary", disabled: true }, "Start tuning");
  const look = h("button", { type: "button", onclick: () => inspect() }, "Show operators");

  const form = h("form", { class: "stack" },
    h("fieldset", {}, h("legend", {}, "Model"), drop,
      h("div", { class: "fields", style: { marginTop: "12px" } }, field("Or a model by name", zoo, "Of the zoo: tunery zoo list names them."),
        field("Shapes", shapes, "For dynamic inputs; several by spaces.")),
      h("p", {}, look)),
    found,
    h("fieldset", {}, h("legend", {}, "Target"), h("div", { class: "fields" },
      field("Target", target, "native: the service's own machine."),
      field("Threads of a kernel", threads, "0: all cores."), field("Dialect", dialect, "The compiler that is tuned."))),
    h("fieldset", {}, h("legend", {}, "Budget"), h("div", { class: "fields" },
      field("Budget", budget, "10min, 500trials, $2, 50kJ, or several by commas."),
      field("Good enough, ms", wanted, "Ends when the sum of the operators is this fast."),
      account.priority > 0 && field("Priority", priority, `0 to ${account.priority}: each step doubles the share.`))),
    failed, h("div", {}, submit));
  const body = account.role === "reader" ? [note("This token may look, and submit nothing.")] : [form];
  main.append(h("div", { class: "title" }, heading("New job")), ...body);

  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  zoo.addEventListener("input", () => {
    model = zoo.value.trim() || null;
    name = "";
    submit.disabled = !model;
  });
  zoo.addEventListener("change", () => zoo.value.trim() && inspect());

  async function take(chosen) {
    const mine = ++looking;
    model = null;
    submit.disabled = true;
    zoo.value = "";
    name = chosen.name;
    if (chosen.size > MOST) return replace(found, note(`${name} has ${bytes(chosen.size)}; send what is larger than ${bytes(MOST)} with: tunery tune FILE --server ${location.origin}`, true));
    const shown = (text, part) => mine === looking && replace(found, h("p", {}, h("strong", {}, name), `, ${bytes(chosen.size)}: ${text}`), progress(part, "Upload"));
    shown("sending", 0);
    try {
      const digest = await upload(chosen, (part) => shown("sending", part));
      if (mine !== looking) return;
      model = digest;
      submit.disabled = false;
    } catch (error) {
      if (mine === looking) replace(found, note(error.message, true));
      return;
    }
    await inspect();
  }

  async function inspect() {
    const mine = ++looking;
    if (!model) return replace(found, note("Choose a file, or write a model's name.", true));
    const title = h("p", {}, h("strong", {}, model.startsWith("sha256:") ? name : model));
    replace(found, title, h("p", { class: "muted" }, "reading its operators"));
    try {
      let job = await post("/v1/jobs", { ...asked(), kind: "extract" });
      while (["queued", "running"].includes(job.state) && mine === looking) job = await get(`/v1/jobs/${job.id}?wait=30`);
      if (mine !== looking) return;
      if (job.state !== "done") return replace(found, title, note(job.message || `The job is ${job.state}.`, true));
      const tasks = job.answer.tasks;
      const kinds = new Set(tasks.map((task) => task.kind)).size;
      replace(found, title, h("p", { class: "muted" }, `${count(tasks.length)} operators of ${kinds === 1 ? "one kind" : `${count(kinds)} kinds`}, ${count(tasks.reduce((sum, task) => sum + task.weight, 0))} calls; for ${job.answer.target}`),
        table("Operators of the model", [
          { head: "Operator", name: true, cell: (task) => task.name },
          { head: "Kind", cell: (task) => task.kind },
          { head: "Calls", num: true, cell: (task) => count(task.weight) },
        ], tasks, "There is nothing to tune in this model."));
    } catch (error) {
      if (mine === looking) replace(found, title, note(error.message, true));
    }
  }

  // What of the form every kind of job is asked with.
  function asked() {
    const job = { model, name: name.slice(0, 200), target: target.value.trim() || "native", threads: Number(threads.value) || 0, dialect: dialect.value.trim() };
    const bound = {};
    for (const part of shapes.value.trim().split(/\s+/).filter(Boolean)) {
      const [input, shape] = [part.slice(0, part.lastIndexOf("=")), part.slice(part.lastIndexOf("=") + 1)];
      const extents = shape.split(/[x,]/).map(Number);
      if (!input || !extents.every((extent) => Number.isInteger(extent) && extent > 0)) throw new Error(`${part} is no shape; write for example input=1x3x224x224`);
      bound[input] = extents;
    }
    return Object.keys(bound).length ? { ...job, shapes: bound } : job;
  }

  const key = crypto.randomUUID?.() ?? String(Math.random()); // a form that is sent twice is one job
  let sends = 0;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    replace(failed);
    try {
      const job = { ...asked(), kind: "tune", deliver: true, budget: budget.value.trim(), priority: Number(priority.value) || 0 };
      if (Number(wanted.value) > 0) job.latency_target_s = Number(wanted.value) / 1e3;
      location.hash = `#/jobs/${(await post("/v1/jobs", job, { "Idempotency-Key": `${key}-${sends}` })).id}`;
    } catch (error) {
      if (error.status) sends += 1;
      replace(failed, note(error.message, true));
      submit.disabled = false;
    }
  });
}
