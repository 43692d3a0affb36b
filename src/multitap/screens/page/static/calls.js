// Calls: one row each, as they happen, with details, replay, and a comparison with the last good one.

import { button, clock, duration, h, readable, Table } from "./dom.js";
import { attempt, code, differenceView, difference, open, tell } from "./dialogs.js";
import { phaseBar, phaseWords } from "./charts.js";
import { ask } from "./gateway.js";
import { callTool } from "./calling.js";
import { resultView } from "./results.js";

const TONES = { error: "warning", refused: "warning", failed: "error", timeout: "error" };
const MOST = 300;
const NO_ARGUMENTS = 'The arguments of this call were not kept, so fill them in. With record = "all" in multitap.toml, later calls are kept.';
const NOT_KEPT = 'Its content is not kept; set record = "errors" or "all" to keep it.';

export const fields = (call) => ({
  server: call.server, tool: call.tool, status: call.outcome, client: call.client, agent: call.agent, kind: "call",
  text: call.error, trace: call.trace, seconds: call.seconds, at: call.at,
});

async function exchange(call) {
  return call.exchange ? ask("exchange", { exchange_id: call.exchange }) : null;
}

// pictures as pictures: what was kept is a result, unless it was too long
function answered(text) {
  try {
    const result = JSON.parse(text);
    if (Array.isArray(result?.content)) return resultView(result);
  } catch { /* it was cut */ }
  return code(readable(text));
}

function said(kept) {
  return kept ? `request\n${readable(kept.arguments)}\n\nresponse\n${readable(kept.result)}` : "";
}

const quoted = (word) => `"${String(word).replace(/["\\]/g, "\\$&")}"`;

export default function calls(app) {
  const table = new Table([
    { title: "Time", cell: (call) => clock(call.at) },
    { title: "Who", class: "words", cell: (call) => call.client || call.agent || "" },
    { title: "Server", cell: (call) => call.server },
    { title: "Tool", cell: (call) => call.tool },
    { title: "Outcome", class: "state", cell: (call) => call.outcome },
    { title: "Took", class: "figure", cell: (call) => duration(call.seconds) },
    { title: h("span", { class: "legend" }, ["queue", "connect", "server", "encode"].map((one) => h("span", { class: one }, one))), cell: (call) => phaseBar(call, call.longest) },
    { title: "Note", class: "words", cell: (call) => call.error ?? "" },
  ], {
    label: "Calls", key: (call) => call.key, tone: (call) => TONES[call.outcome] ?? "quiet", open: details, empty: "There are no calls yet. They appear here as clients make them; a tool in Tools has a form to call it.",
    actions: () => [["Replay", replay], ["Compare", compare]],
  });
  let past = null;
  let asked = null;

  async function replay(call) {
    const tools = await attempt(() => app.tools());
    const tool = tools?.find((one) => one.server === call.server && one.tool === call.tool);
    if (!tool) { tell(`${call.server} no longer has ${call.tool}.`, "error"); return; }
    const kept = await attempt(() => exchange(call));
    let known = null;
    try { known = JSON.parse(kept?.arguments ?? "null"); } catch { /* it was cut */ }
    callTool(tool, known ?? {}, known ? "" : NO_ARGUMENTS);
  }

  async function compare(call) {
    await attempt(async () => {
      const filter = `server:${quoted(call.server)} tool:${quoted(call.tool)} status:ok`;
      const { records } = await ask("calls", { query: filter, limit: 200 });
      const good = records.find((one) => one.exchange && one.exchange !== call.exchange && one.at < call.at + 1e-6)
        ?? records.find((one) => one.exchange && one.exchange !== call.exchange);
      if (!good || !call.exchange) { open("Compare", h("p", {}, 'There is no recorded call to compare with; set record = "all".')); return; }
      const [before, after] = await Promise.all([exchange(good), exchange(call)]);
      const lines = difference(said(before), said(after));
      open(`${call.tool}: this call and the last good one`, [h("p", { class: "quiet" }, `- at ${clock(good.at)}, + at ${clock(call.at)}`),
        lines.some((line) => line[0] !== " ") ? differenceView(lines) : h("p", {}, "There is no difference.")], { wide: true });
    });
  }

  async function details(call) {
    const kept = await attempt(() => exchange(call));
    const facts = [["Outcome", call.outcome], ["Took", duration(call.seconds)], ["Where the time went", phaseWords(call) || "-"], ["Who", call.client || call.agent || "-"],
      ["Sent", `${(call.bytes_out ?? 0).toLocaleString("en")} bytes`], ["Received", `${(call.bytes_in ?? 0).toLocaleString("en")} bytes`], ...(call.trace ? [["Trace", call.trace]] : []), ...(call.error ? [["Error", call.error]] : [])];
    open(`${call.server} ${call.tool} at ${clock(call.at)}`, [
      h("dl", {}, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      kept ? [h("h3", {}, "Request"), code(readable(kept.arguments)), h("h3", {}, "Response"), answered(kept.result)] : h("p", { class: "quiet" }, NOT_KEPT),
      h("div", { class: "buttons" }, button("Replay", () => replay(call)), button("Compare with the last good one", () => compare(call)))], { wide: true });
  }

  // older calls that match the filter come from the store; new ones are in the stream
  async function look() {
    if (asked === app.filter) return;
    asked = app.filter;
    const found = await attempt(() => ask("calls", { query: app.filter, limit: 200 }));
    past = found?.records ?? [];
    show();
  }

  function show() {
    if (!past) return;
    const live = app.filtered(app.calls, fields);
    const newest = new Map();
    for (const call of [...live].reverse().concat(app.filtered(past, fields))) {
      const key = `${call.at.toFixed(6)} ${call.server} ${call.tool}`;
      if (!newest.has(key)) newest.set(key, { ...call, key });
    }
    const shown = [...newest.values()].sort((a, b) => b.at - a.at).slice(0, MOST);
    const longest = Math.max(0, ...shown.map((one) => one.seconds));
    table.show(shown.map((one) => ({ ...one, longest })), app.empty("calls"));
  }

  return {
    node: table.node, table, show, every: 1000, look,
    keys: { r: () => table.current && replay(table.current), d: () => table.current && compare(table.current) },
    help: "Enter shows details, r replays the call, d compares it with the last good one",
  };
}
