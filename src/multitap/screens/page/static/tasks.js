// Tasks: calls that run by themselves, of clients and of commands.

import { clock, duration, h, Table } from "./dom.js";
import { attempt, confirm, open } from "./dialogs.js";
import { ask } from "./gateway.js";
import { resultView } from "./results.js";

const OPEN = ["working", "input_required"];
const TONES = { failed: "error", input_required: "warning", working: "normal" };

export default function tasks(app) {
  const table = new Table([
    { title: "Begun", cell: (task) => clock(task.created) },
    { title: "Tool", cell: (task) => task.name },
    { title: "Server", cell: (task) => task.server },
    { title: "Status", class: "state", cell: (task) => task.status.replace("_", " ") },
    { title: "Lasts", class: "figure", cell: (task) => duration((OPEN.includes(task.status) ? Date.now() / 1000 : task.updated) - task.created) },
    { title: "For", class: "words", cell: (task) => task.caller },
    { title: "Note", class: "words long", cell: (task) => task.message ?? "" },
  ], { label: "Tasks", key: (task) => task.id, tone: (task) => TONES[task.status] ?? "quiet", open: details, actions: (task) => (OPEN.includes(task.status) ? [["Cancel", cancel]] : []),
    empty: ["There are no tasks: calls that run by themselves. They are kept for an hour. In a terminal, ", h("code", {}, "multitap call --detach TOOL"), " starts one."] });

  async function details(task) {
    const whole = await attempt(() => ask("task", { task_id: task.id }));
    if (whole) open(`${whole.name}: ${whole.status.replace("_", " ")}`, [h("p", { class: "quiet" }, `Task ${whole.id}, for ${whole.caller}`), whole.message && h("p", {}, whole.message), whole.result && resultView(whole.result)].filter(Boolean), { wide: true });
  }

  async function cancel(task) {
    if (await confirm(`Cancel ${task.name}?`, "Its server is told to stop, and its client gets no result.", "Cancel the task")) { await attempt(() => ask("cancel_task", { task_id: task.id }), `${task.name} is cancelled.`); look(); }
  }

  async function look() {
    const list = await attempt(() => ask("tasks"));
    if (list) table.show(app.filtered(list, (task) => ({ server: task.server, tool: task.name, status: task.status, client: task.caller, kind: "task", text: task.message ?? "" })), app.empty("tasks"));
  }

  return { node: table.node, table, show() {}, look, every: 1000, keys: { x: () => table.current && OPEN.includes(table.current.status) && cancel(table.current) }, help: "Enter shows the result, x cancels" };
}
