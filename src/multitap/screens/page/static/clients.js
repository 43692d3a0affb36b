// Clients: who is connected, what they can be asked, what they called.

import { clock, counted, duration, h, number, Table } from "./dom.js";
import { attempt, open } from "./dialogs.js";
import { ask } from "./gateway.js";

export default function clients(app) {
  const table = new Table([
    { title: "Client", cell: (one) => one.name },
    { title: "Version", cell: (one) => one.version },
    { title: "Protocol", cell: (one) => one.era },
    { title: "Profile", cell: (one) => one.profile },
    { title: "Token", cell: (one) => one.principal },
    { title: "Can be asked", class: "words", cell: (one) => one.capabilities.join(", ") },
    { title: "Under way", class: "figure", cell: (one) => number(one.requests) },
    { title: "Calls", class: "figure", cell: (one) => number(one.calls) },
    { title: "Called last", class: "words", cell: (one) => one.tools.slice(0, 3).join(", ") },
  ], { label: "Clients", key: (one) => one.key, tone: () => "quiet", open: details, empty: ["No client is connected. In a terminal, ", h("code", {}, "multitap install CLIENT"), " gives a client all of your servers."] });
  const words = h("p", { class: "quiet" });

  async function details(one) {
    const caller = one.caller.replace(/["\\*?[\]]/g, "?");
    const found = await attempt(() => ask("calls", { query: caller ? `${one.kind}:"${caller}"` : "", limit: 100 }));
    if (!found) return;
    open(one.name, found.records.length
      ? h("table", {}, h("thead", {}, h("tr", {}, ["Time", "Server", "Tool", "Outcome", "Took"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, found.records.map((call) => h("tr", {}, [clock(call.at), call.server, call.tool, call.outcome, duration(call.seconds)].map((cell) => h("td", {}, cell))))))
      : h("p", {}, "It has not called anything."), { wide: true });
  }

  return {
    node: h("div", {}, words, table.node), table, keys: {}, help: "Enter shows what a client called",
    show() {
      const figures = app.state.figures ?? { sessions: 0, waiting: 0, private_links: 0 };
      words.textContent = [counted(figures.sessions, "session"), figures.waiting > 0 && `${counted(figures.waiting, "call")} waiting for an answer of the client`,
        figures.private_links > 0 && `${counted(figures.private_links, "connection")} to servers used by one client only`].filter(Boolean).join(", ");
      const rows = (app.state.clients ?? []).map((one, at) => ({ ...one, key: `${at} ${one.caller}` }));
      table.show(app.filtered(rows, (one) => ({ client: one.caller, kind: "client", text: one.tools.join(" ") })), app.empty("clients"));
    },
  };
}
