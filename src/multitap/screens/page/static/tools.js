// Tools: searched by name and words, with their schemas, and called through a form.

import { button, h, number, Table } from "./dom.js";
import { attempt, code, open } from "./dialogs.js";
import { callTool } from "./calling.js";
import { changeTool } from "./editing.js";

const MOST = 500;

export default function tools(app) {
  const table = new Table([
    { title: "Tool", cell: (tool) => tool.name },
    { title: "Server", cell: (tool) => tool.server },
    { title: "Calls", class: "figure", cell: (tool) => number(tool.calls) },
    { title: "Errors", class: "figure errors", cell: (tool) => number(tool.errors) },
    { title: "Description", class: "words long", cell: (tool) => tool.description.slice(0, 300) },
  ], {
    label: "Tools", key: (tool) => tool.name, tone: () => "quiet", open: details, empty: "No server offers a tool.",
    actions: () => [["Call", (tool) => callTool(tool)]],
  });
  let all = null;

  function details(tool) {
    const hints = Object.entries(tool.annotations ?? {}).filter(([, value]) => typeof value === "boolean").map(([name, value]) => `${name}: ${value}`);
    const node = open(tool.name, [
      tool.title && h("p", {}, tool.title),
      h("p", { class: "said" }, tool.description),
      hints.length > 0 && h("p", { class: "quiet" }, hints.join(", ")),
      h("div", { class: "buttons" }, button("Call it", () => { node.close(); callTool(tool); }, { class: "primary" }), button("Rename or describe", () => { node.close(); changeTool(tool); })),
      h("h3", {}, "Takes"), code(JSON.stringify(tool.inputSchema, null, 2)),
      tool.outputSchema && [h("h3", {}, "Answers"), code(JSON.stringify(tool.outputSchema, null, 2))]], { wide: true });
  }

  function show() {
    if (!all) return;
    const starting = (app.state.servers ?? []).filter((one) => ["connecting", "waiting"].includes(one.state)).map((one) => one.name);
    const figures = app.state.figures?.servers ?? {};
    const rows = all.map((tool) => ({ ...tool, calls: figures[tool.server]?.tools?.[tool.tool]?.calls ?? 0, errors: figures[tool.server]?.tools?.[tool.tool]?.errors ?? 0 }));
    table.show(app.filtered(rows, (tool) => ({ server: tool.server, tool: tool.name, kind: "tool", text: tool.description })).slice(0, MOST),
      app.empty("tools") ?? (starting.length ? `Servers are starting: ${starting.join(", ")}` : undefined));
  }

  return {
    node: table.node, table, show, every: 1000,
    look: async () => { const found = await attempt(() => app.tools()); if (found && found !== all) { all = found; show(); } },
    keys: { c: () => table.current && callTool(table.current) },
    help: "Enter shows the schema, c calls the tool",
  };
}
