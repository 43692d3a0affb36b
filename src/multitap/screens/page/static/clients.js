// Clients: who is connected, what they can be asked, what they called.

import { clock, duration, h, number, Table } from "./dom.js";
import { attempt, open } from "./dialogs.js";
import { ask } from "./gateway.js";

export default function clients(app) {
  const table = new Table([
    { title: "Client", cell: (one) => one.name || "(unnamed)" },
    { title: "Version", cell: (one) => one.version },
    { title: "Protocol", cell: (one) => one.protocol_version || "stateless" },
    { title: "Profile", cell: (one) => one.profile ?? "" },
    { title: "Token", cell: (one) => one.principal },
    { title: "Can be asked", class: "words", cell: (one) => one.capabilities.join(", ") },
    { title: "Under way", class: "figure", cell: (one) => number(one.requests) },
  ], { label: "Clients", key: (one) => one.key, tone: () => "quiet", open: details, empty: "No client with a session is connected. Those of the stateless era come and go with each call; Calls shows them." });
  const words = h("p", { class: "quiet" });

  async function details(one) {
    const name = (one.name || "").replace(/["\\*?[\]]/g, "?");
    const found = await attempt(() => ask("calls", { filter: name ? `client:"*${name}*"` : "", limit: 100 }));
    if (!found) return;
    open(one.name || "(unnamed)", found.records.length
      ? h("table", {}, h("thead", {}, h("tr", {}, ["Time", "Server", "Tool", "Outcome", "Took"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, found.records.map((call) => h("tr", {}, [clock(call.at), call.server, call.tool, call.outcome, duration(call.seconds)].map((cell) => h("td", {}, cell))))))
      : h("p", {}, "It has not called anything."), { wide: true });
  }

  return {
    node: h("div", {}, words, table.node), table, keys: {}, help: "Enter shows what a client called",
    show() {
      const figures = app.state.figures ?? { clients: [], sessions: 0, waiting: 0, private_links: 0 };
      words.textContent = `${figures.sessions} sessions, ${figures.waiting} calls wait for an answer of their client, ${figures.private_links} sessions with servers belong to one client`;
      const rows = figures.clients.map((one, at) => ({ ...one, key: `${at} ${one.name}` }));
      table.show(app.filtered(rows, (one) => ({ client: one.name, kind: "client", text: one.principal, agent: one.profile })));
    },
  };
}
