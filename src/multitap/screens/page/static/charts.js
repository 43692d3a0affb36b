// Small charts of values over time, drawn as SVG.

import { clock, duration, h, svg } from "./dom.js";

const WIDTH = 320, HEIGHT = 56;
const PHASES = [["queued", "queue"], ["connecting", "connect"], ["server", "server"], ["encoding", "encode"]];

export function spark(values, width = 72, height = 16) {
  const known = values.filter((one) => one !== null);
  if (!known.length) return h("span", { class: "none" }, "-");
  const top = Math.max(...known) || 1, step = width / values.length;
  const bars = values.map((value, at) => value === null ? null : svg("rect", {
    x: (at * step).toFixed(1), width: Math.max(1, step - 0.6).toFixed(1),
    y: (height - Math.max(1, (value / top) * height)).toFixed(1), height: Math.max(1, (value / top) * height).toFixed(1),
  }));
  const label = `slowest call of each of the last ${values.length} seconds, up to ${duration(top)}`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label }, svg("title", {}, label), bars);
}

export function phases(call) {
  const { queued = 0, connecting = 0, encoding = 0 } = call;
  const spent = { queued, connecting, encoding, server: Math.max(0, call.seconds - queued - connecting - encoding) };
  return PHASES.map(([key, name]) => [name, spent[key]]);
}

export function phaseWords(call) {
  return phases(call).filter(([, value]) => value > 0).map(([name, value]) => `${name} ${duration(value)}`).join(" | ");
}

export function phaseBar(call, longest) {
  const width = 120;
  let start = 0;
  const bars = phases(call).map(([name, value]) => {
    const size = longest ? (value / longest) * width : 0;
    const bar = size > 0 && svg("rect", { x: start.toFixed(2), y: 2, width: Math.max(0.5, size).toFixed(2), height: 8, class: name });
    start += size;
    return bar;
  });
  const words = phaseWords(call) || "no time";
  return svg("svg", { viewBox: `0 0 ${width} 12`, class: "bar", role: "img", "aria-label": words }, svg("title", {}, words), bars);
}

// One chart: `lines` are [class, values]; a value is null if nothing was measured.
export function chart(title, lines, { start, step, words }) {
  const all = lines.flatMap(([, values]) => values).filter((one) => one !== null);
  const top = Math.max(...all, 0) || 1;
  const count = lines[0][1].length;
  const x = (at) => (at / Math.max(1, count - 1)) * WIDTH;
  const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 8);
  const drawn = lines.flatMap(([name, values]) => {
    const parts = [];
    let run = [];
    const end = () => {
      if (run.length === 1) parts.push(svg("circle", { cx: x(run[0][0]).toFixed(1), cy: y(run[0][1]).toFixed(1), r: 2, class: `dot ${name}` }));
      else if (run.length) parts.push(svg("polyline", { points: run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "), class: `line ${name}` }));
      run = [];
    };
    values.forEach((value, at) => (value === null ? end() : run.push([at, value])));
    end();
    return parts;
  });
  const since = clock(start);
  const latest = lines.map(([name, values]) => `${name} at most ${words(Math.max(0, ...values.filter((one) => one !== null)))}`).join(", ");
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", {}, title), h("span", { class: "peak" }, words(all.length ? Math.max(...all) : 0))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} since ${since}, every ${step} seconds: ${latest}` },
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "axis" }), drawn),
    h("div", { class: "axis-words" }, h("span", {}, since), h("span", {}, "now")));
}

// Calls, errors and times of a history, of one server or tool or of all.
export function charts(history, { server = "", tool = "" } = {}) {
  const points = 60;
  const calls = Array(points).fill(0), errors = Array(points).fill(0);
  const sums = Array(points).fill(0), slowest = Array(points).fill(null);
  for (const one of history.tools) {
    if ((server && one.server !== server) || (tool && one.tool !== tool)) continue;
    for (const [at, made, bad, mean, worst] of one.steps) {
      if (at < 0 || at >= points) continue;
      calls[at] += made;
      errors[at] += bad;
      sums[at] += mean * made;
      slowest[at] = Math.max(slowest[at] ?? 0, worst);
    }
  }
  const mean = sums.map((sum, at) => (calls[at] ? sum / calls[at] : null));
  const scale = { start: history.start, step: history.step };
  const perStep = (value) => `${Number(value.toPrecision(3))} in ${duration(history.step)}`;
  return h("div", { class: "charts" },
    chart("Calls", [["calls", calls]], { ...scale, words: perStep }),
    chart("Errors", [[errors.some(Boolean) ? "errors" : "calm", errors]], { ...scale, words: (value) => (value ? perStep(value) : "none") }),
    chart("Time, mean and slowest", [["slowest", slowest], ["mean", mean]], { ...scale, words: (value) => (value ? duration(value) : "-") }));
}
