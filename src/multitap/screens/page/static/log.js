// Log: events, servers' log messages and their stderr, live.

import { clock, h, Table } from "./dom.js";
import { attempt } from "./dialogs.js";
import { ask } from "./gateway.js";

const QUIET = ["debug", "info", "notice"];

export default function log(app) {
  const table = new Table([
    { title: "Time", cell: (one) => clock(one.at) },
    { title: "Level", class: "state", cell: (one) => one.level },
    { title: "Kind", class: "quiet", cell: (one) => one.kind },
    { title: "Server", cell: (one) => one.server ?? "" },
    { title: "What", class: "words long", cell: (one) => one.text },
  ], { label: "Log", key: (one) => one.key, tone: (one) => (QUIET.includes(one.level) ? "quiet" : one.level === "warning" ? "warning" : "error"), empty: "Nothing has happened yet." });
  const text = h("pre", { class: "code tall", tabindex: 0, "aria-label": "stderr", hidden: true });
  const source = h("select", { "aria-label": "Source", onchange: () => look() }, h("option", { value: "" }, "Events and calls"));
  const node = h("div", {}, h("div", { class: "choices" }, source), table.node, text);

  async function look() {
    table.node.hidden = source.value !== "";
    text.hidden = source.value === "";
    if (source.value) {
      const said = await attempt(() => ask("stderr", { server: source.value }));
      if (said !== undefined && said !== text.said) { text.said = said; text.textContent = ""; text.append(...[h("span", {}, said || "It has not written anything.")]); text.scrollTop = text.scrollHeight; }
      return;
    }
    const found = await attempt(() => ask("log", { query: app.filter, limit: 200 }));
    if (!found) return;
    const seen = new Map();
    const rows = found.records.map((one) => {
      const key = `${one.at.toFixed(6)} ${one.text.slice(0, 60)}`;
      seen.set(key, (seen.get(key) ?? 0) + 1);
      return { ...one, key: `${key} ${seen.get(key)}` };
    });
    table.show(rows, app.empty("entries"));
  }

  function show() {
    const names = (app.state.servers ?? []).map((one) => one.name).sort();
    const now = JSON.stringify(names);
    if (now === source.names) return;
    source.names = now;
    const chosen = source.value;
    source.replaceChildren(h("option", { value: "" }, "Events and calls"), ...names.map((one) => h("option", { value: one }, `stderr of ${one}`)));
    source.value = names.includes(chosen) ? chosen : "";
  }

  return { node, table, show, look, every: 1000, keys: {}, help: "choose a server to read its stderr" };
}
