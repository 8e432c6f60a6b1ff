// Plots, drawn at the width that there is.

import { h } from "./ui.js";

const SVG = "http://www.w3.org/2000/svg";

function s(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

// Draws now and whenever the width changes. draw(width) returns an <svg>.
function figure(draw, ...below) {
  const place = h("div", {});
  let width = 0;
  const again = () => {
    if (place.clientWidth === width || !place.clientWidth) return;
    width = place.clientWidth;
    place.replaceChildren(draw(width));
  };
  new ResizeObserver(again).observe(place);
  return h("figure", {}, place, ...below);
}

// Round numbers that cut 0 to `most` into about so many parts, with their texts.
export function ticks(most, parts) {
  const raw = most / Math.max(parts, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const decimals = Math.max(0, Math.min(6, -Math.floor(Math.log10(step)) + (step / power === 2.5 ? 1 : 0)));
  const count = Math.floor(most / step + 1e-9) + 1;
  return Array.from({ length: count }, (_, i) => ({ at: i * step, text: i ? (i * step).toFixed(decimals) : "0" }));
}

// The same for seconds, in the unit that suits the whole.
function times(most_s, parts) {
  const [unit, unit_s] = most_s < 120 ? ["s", 1] : most_s < 7200 ? ["min", 60] : ["h", 3600];
  return ticks(most_s / unit_s, parts).map(({ at, text }) => ({ at: at * unit_s, text: `${text} ${unit}` }));
}

// Points by two numbers; `x` and `y` are in the units that the titles name. Those that are `chosen` have another color.
export function scatter({ points, xTitle, yTitle, label }) {
  return figure((width) => {
    const height = 260;
    const [left, right, top, bottom] = [64, 12, 24, 40];
    const xs = points.map((point) => point.x);
    const [least, most] = [Math.min(...xs), Math.max(...xs)];
    const yMost = Math.max(...points.map((point) => point.y)) * 1.04 || 1;
    const x = (value) => left + 6 + ((width - left - right - 12) * (value - least)) / (most - least || 1);
    const y = (value) => height - bottom - ((height - top - bottom) * value) / yMost;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    for (const { at, text } of ticks(yMost, 4)) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        s("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, text));
    }
    for (const [value, anchor] of [[least, "start"], [most, "end"]]) svg.append(s("text", { x: x(value), y: height - bottom + 16, "text-anchor": anchor }, value.toPrecision(3)));
    svg.append(s("text", { x: width - right, y: height - 6, "text-anchor": "end" }, xTitle), s("text", { x: 0, y: 12 }, yTitle));
    for (const point of points) svg.append(s("circle", { class: point.chosen ? "dot chosen" : "dot", cx: x(point.x), cy: y(point.y), r: point.chosen ? 5 : 3 }));
    return svg;
  });
}

// Lines of steps: each point holds until the next. The points of a `second` line have another color.
// x is in seconds, y in the unit that yTitle names.
export function steps({ points, second = [], xTitle, yTitle, label }) {
  return figure((width) => {
    const height = 240;
    const [left, right, top, bottom] = [64, 12, 24, 40];
    const xs = [...points, ...second].map((point) => point.x);
    const ys = [...points, ...second].map((point) => point.y);
    const xMost = Math.max(...xs) || 1;
    const yMost = Math.max(...ys) * 1.04 || 1;
    const x = (value) => left + ((width - left - right) * value) / xMost;
    const y = (value) => height - bottom - ((height - top - bottom) * value) / yMost;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    for (const { at, text } of ticks(yMost, 4)) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        s("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, text));
    }
    for (const { at, text } of times(xMost, Math.max(3, Math.floor(width / 130)))) {
      svg.append(s("text", { x: x(at), y: height - bottom + 16, "text-anchor": at > xMost * 0.97 ? "end" : "middle" }, text));
    }
    svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: y(0), y2: y(0) }));
    svg.append(s("text", { x: width - right, y: height - 6, "text-anchor": "end" }, xTitle), s("text", { x: 0, y: 12 }, yTitle));
    for (const [line, [first, ...rest]] of Object.entries({ line: points, "line second": second })) {
      if (first) svg.append(s("path", { class: line, d: `M${x(first.x)} ${y(first.y)}${rest.map((point) => `H${x(point.x)}V${y(point.y)}`).join("")}` }));
    }
    return svg;
  });
}

const COLORED = ["build", "measure", "propose", "learn", "finals"];

// Who did what when: a lane for each worker. `spans` are {lane, kind, start_s, end_s}.
export function gantt({ spans, kinds, label }) {
  const lanes = [...new Set(spans.map((span) => span.lane))].sort();
  const color = (kind) => `k${COLORED.includes(kind) ? COLORED.indexOf(kind) : COLORED.length}`;
  const others = kinds.filter((kind) => !COLORED.includes(kind));
  const named = kinds.filter((kind) => COLORED.includes(kind)).map((kind) => [color(kind), kind]);
  if (others.length) named.push([color(others[0]), others.join(", ")]);
  const legend = h("ul", { class: "legend" }, named.map(([one, text]) => h("li", {}, h("i", { class: one }), text)));
  return figure((width) => {
    const lane = 20;
    const left = Math.min(150, width * 0.3);
    const height = lanes.length * lane + 28;
    const most = Math.max(...spans.map((span) => span.end_s)) || 1;
    const x = (value) => left + ((width - left - 8) * value) / most;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    for (const { at, text } of times(most, Math.max(3, Math.floor(width / 130)))) {
      svg.append(s("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height - 22 }),
        s("text", { x: x(at), y: height - 6, "text-anchor": at > most * 0.97 ? "end" : "middle" }, text));
    }
    lanes.forEach((name, row) => {
      const letters = Math.floor(left / 7);
      svg.append(s("text", { class: "lane", x: 0, y: row * lane + 14 }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
    });
    for (const span of spans) {
      svg.append(s("rect", { class: color(span.kind), x: x(span.start_s), y: lanes.indexOf(span.lane) * lane + 4, height: lane - 8,
        width: Math.max(x(span.end_s) - x(span.start_s), 0.6) }));
    }
    return svg;
  }, legend);
}
