// Servers: state, reason and actions; calls, errors and times over the last minutes.

import { button, duration, h, number, Table } from "./dom.js";
import { attempt, code, confirm, open } from "./dialogs.js";
import { charts, spark } from "./charts.js";
import { ask } from "./gateway.js";
import { logIn } from "./calling.js";
import { addServer, enable, remove, rename } from "./editing.js";

const SPANS = [["15 minutes", 900], ["1 hour", 3600], ["1 day", 86400]];
const KEYS = { r: "restart", o: "log in", e: "enable", T: "review" };

const NO_SERVERS = [h("p", {}, "There are no servers yet."), h("p", {}, button("Add a server", addServer, { class: "primary" })),
  h("p", {}, "In a terminal, ", h("code", {}, "multitap import"), " adds those of Claude, Cursor, VS Code and other clients.")];

const short = (text) => (text.length > 160 ? `${text.slice(0, 160)}…` : text);

async function logs(row) {
  const text = await attempt(() => ask("stderr", { server: row.name }));
  if (text !== undefined) open(`stderr of ${row.name}`, code(text || "It has not written anything."), { wide: true });
}

// only shown: whoever reaches this page must not be able to make the gateway run something new
async function review(row) {
  const text = await attempt(() => ask("trust_review", {}));
  if (text === undefined) return;
  const note = h("p", {}, `Nothing of it is used before you trust it. This page cannot do that: in a terminal, ${row.fix}.`);
  open(`Not trusted: ${row.project}`, [note, code(text || "It is trusted by now.")], { wide: true });
}

const restart = (row) => attempt(() => ask("restart", { server: row.name }), `${row.name} restarts.`);

async function flip(row) {
  const on = row.state === "disabled";
  if (on) { await enable(row.name); return; }
  if (!(await confirm(`Disable ${row.name}?`, "No client can use its tools until it is enabled again. The configuration file is changed.", "Disable"))) return;
  await attempt(() => ask("switch", { server: row.name, on }), `${row.name} is disabled.`);
}

export default function servers(app) {
  const table = new Table([
    { title: "Server", cell: (row) => row.name },
    { title: "State", class: "state", cell: (row) => row.state },
    { title: "Reason", class: "words reason", cell: (row) => [short(row.reason), row.fix && h("small", {}, `${row.fix}${KEYS[row.key] ? ` (key ${row.key})` : ""}`)] },
    { title: "Trend", cell: (row) => spark(row.speed) },
    { title: "p95", class: "figure", cell: (row) => duration(row.p95) },
    { title: "Ping", class: "figure", cell: (row) => duration(row.latency) },
    { title: "Calls", class: "figure", cell: (row) => number(row.calls) },
    { title: "Errors", class: "figure errors", cell: (row) => number(row.errors) },
    { title: "Tools", class: "figure", cell: (row) => number(row.tools) },
    { title: "Tokens", class: "figure", cell: (row) => number(row.tokens) },
    { title: "Restarts", class: "figure", cell: (row) => number(row.restarts) },
    { title: "Era", class: "quiet", cell: (row) => row.era },
    { title: "Level", class: "quiet", cell: (row) => row.level },
  ], {
    label: "Servers", key: (row) => row.name, tone: (row) => row.tone, open: details, empty: NO_SERVERS,
    actions: (row) => [
      ...(row.project ? [["Review", review]] : []), ...(row.project && !row.transport ? [] : [["Restart", restart], [row.state === "disabled" ? "Enable" : "Disable", flip],
      ...(row.state === "needs auth" ? [["Log in", (one) => attempt(() => logIn(one.name))]] : []), ["Logs", logs]]),
    ],
  });
  const span = h("select", { "aria-label": "Time span", onchange: look }, SPANS.map(([label, value]) => h("option", { value }, label)));
  const server = h("select", { "aria-label": "Server", onchange: () => { tool.value = ""; draw(); } }, h("option", { value: "" }, "all servers"));
  const tool = h("select", { "aria-label": "Tool", onchange: draw }, h("option", { value: "" }, "all tools"));
  const plots = h("div", { class: "plots" });
  const node = h("div", { class: "watch" }, h("section", { "aria-label": "Over time" }, h("div", { class: "choices" }, span, server, tool, h("span", { class: "space" }), button("Add a server", addServer)), plots), table.node);
  let history = null;

  function options(select, words, names) {
    const now = JSON.stringify(names);
    if (select.names === now) return;
    select.names = now;
    const chosen = select.value;
    select.replaceChildren(h("option", { value: "" }, words), ...names.map((one) => h("option", { value: one }, one)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  function draw() {
    if (!history) return;
    options(server, "all servers", [...new Set(history.tools.map((one) => one.server))].sort());
    options(tool, "all tools", [...new Set(history.tools.filter((one) => !server.value || one.server === server.value).map((one) => one.tool))].sort());
    plots.replaceChildren(charts(history, { server: server.value, tool: tool.value }));
  }

  async function look() {
    try { history = await ask("history", { span: Number(span.value) }); draw(); } catch { /* the next refresh tries again */ }
  }

  function details(row) {
    if (row.project && !row.transport) { review(row); return; }
    const facts = [["State", row.state], ["Reason", row.reason || "-"], ["What helps", row.fix || "-"], ["Transport", row.transport], ["Era", row.era || "-"], ["Confinement", row.level ? `${row.level}: ${row.confinement}` : "-"],
      ["Tools", number(row.tools)], ["Tokens of their definitions (estimated)", number(row.tokens)], ["Tokens of results", row.shaped || "-"], ["Calls", number(row.calls)], ["Errors", number(row.errors)], ["Restarts", number(row.restarts)]];
    const tools = Object.entries(app.state.figures?.servers?.[row.name]?.tools ?? {}).sort((a, b) => b[1].calls - a[1].calls).slice(0, 100);
    const node = open(row.name, [
      h("div", { class: "buttons" }, button("Rename", () => { node.close(); rename(row); }), button("Remove", () => { node.close(); remove(row); })),
      h("dl", {}, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      tools.length > 0 && h("table", {}, h("thead", {}, h("tr", {}, ["Tool", "Calls", "Errors", "p50", "p95", "Last error"].map((one) => h("th", { scope: "col" }, one)))),
        h("tbody", {}, tools.map(([name, one]) => h("tr", {}, h("td", {}, name), h("td", { class: "figure" }, number(one.calls)), h("td", { class: "figure" }, number(one.errors)),
          h("td", { class: "figure" }, duration(one.p50)), h("td", { class: "figure" }, duration(one.p95)), h("td", { class: "words" }, one.last_error ?? "")))))], { wide: true });
  }

  return {
    node, table,
    every: 5000, look,
    show: () => table.show(app.filtered(app.state.servers ?? [], (row) => ({ server: row.name, status: row.state, kind: "server", text: row.reason })), app.empty("servers")),
    keys: {
      a: addServer,
      r: () => table.current && restart(table.current),
      e: () => table.current && flip(table.current),
      o: () => table.current && attempt(() => logIn(table.current.name)),
      l: () => table.current && logs(table.current),
      T: () => table.current?.project && review(table.current),
      t: () => table.current && app.visit("tools", `server:${table.current.name}`),
    },
    help: "a add a server, r restart, e enable or disable, o log in, l logs, t tools, T review of an untrusted project",
  };
}
