// Access: tokens, questions that wait for a person, tools that changed, the audit log.

import { button, counted, h, moment, Table } from "./dom.js";
import { attempt, code, confirm, differenceView, open } from "./dialogs.js";
import { ask } from "./gateway.js";
import { answer } from "./questions.js";

const LIVES = [["never", ""], ["a day", 86400], ["a week", 604800], ["90 days", 7776000]];

function created(made) {
  open("The new token", [h("p", {}, "Copy it now: it is not shown again."), code(made.token), h("p", { class: "quiet" }, "Clients send it as ", h("code", {}, "Authorization: Bearer TOKEN"), ".")]);
}

function create(done) {
  const field = (label, id, input, help) => h("div", { class: "field" }, h("label", { for: id }, label), help && h("small", {}, help), input);
  const name = h("input", { id: "token-name", required: true, maxlength: 64, autocomplete: "off" });
  const allow = h("input", { id: "token-allow", autocomplete: "off", placeholder: "github_*, notes_read" });
  const profile = h("input", { id: "token-profile", autocomplete: "off" });
  const rate = h("input", { id: "token-rate", autocomplete: "off", placeholder: "100/min" });
  const lasts = h("select", { id: "token-lasts" }, LIVES.map(([label, value]) => h("option", { value }, label)));
  const node = open("New token", h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const wanted = { name: name.value, allow: allow.value.split(",").map((one) => one.trim()).filter(Boolean), profile: profile.value || null, rate: rate.value || null, lasts: lasts.value ? Number(lasts.value) : null };
    const made = await attempt(() => ask("create_token", wanted));
    if (made) { node.close(); created(made); done(); }
  } },
  field("Name", name.id, name), field("Tools", allow.id, allow, "Globs, separated by commas; empty allows all"), field("Profile", profile.id, profile),
  field("Requests", rate.id, rate), field("Expires", lasts.id, lasts),
  h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Create"))));
  name.focus();
}

export default function access(app) {
  const tokens = new Table([
    { title: "Name", cell: (one) => one.name },
    { title: "Id", class: "quiet", cell: (one) => one.id },
    { title: "State", class: "state", cell: (one) => one.state },
    { title: "Allows", class: "words", cell: (one) => (one.is_console ? "this console" : one.allow.join(", ") || "all tools") },
    { title: "Profile", cell: (one) => one.profile ?? "" },
    { title: "Requests", cell: (one) => one.rate ?? "" },
    { title: "Accounts", class: "words", cell: (one) => (one.accounts ?? []).join(", ") },
    { title: "Expires", cell: (one) => moment(one.expires) },
    { title: "Last use", cell: (one) => moment(one.last_use) },
  ], { label: "Tokens", key: (one) => one.id, tone: () => "quiet", empty: "There are no tokens.", actions: (one) => (one.state === "active" ? [["Revoke", revoke]] : []) });
  const people = new Table([
    { title: "Person", cell: (one) => one.label },
    { title: "Name", cell: (one) => one.name },
    { title: "State", class: "state", cell: (one) => one.state },
    { title: "Rules", class: "words", cell: (one) => one.rules.join(", ") },
    { title: "Clients", class: "words", cell: (one) => one.clients.join(", ") },
    { title: "Accounts", class: "words", cell: (one) => (one.accounts ?? []).join(", ") },
    { title: "Last use", cell: (one) => moment(one.last_use) },
  ], { label: "People", key: (one) => one.label, tone: () => "quiet", empty: "Nobody has signed in with an identity provider.", actions: (one) => (one.state === "active" ? [["Revoke", revokePerson]] : [["Let back in", restorePerson]]) });
  const questions = h("div", { class: "cards" });
  const pins = h("div", { class: "cards" });
  const audit = new Table([
    { title: "Time", cell: (row) => moment(row.record.at) },
    { title: "Who", class: "words", cell: (row) => [row.record.principal, row.record.client, row.record.agent].filter(Boolean).join(" ") },
    { title: "What", class: "words", cell: (row) => [row.record.kind, row.record.server, row.record.tool ?? row.record.subject].filter(Boolean).join(" ") },
    { title: "Decision", class: "state", cell: (row) => row.record.decision ?? "" },
    { title: "Outcome", cell: (row) => row.record.outcome ?? "" },
    { title: "Account", class: "words", cell: (row) => row.record.credential ?? "" },
    { title: "Note", class: "words", cell: (row) => row.record.detail ?? "" },
  ], { label: "Audit", key: (row) => row.entry, tone: (row) => (row.record.decision === "deny" ? "warning" : "quiet"), empty: "No matching entries." });
  const trouble = h("div");
  const node = h("div", {}, trouble,
    h("section", {}, h("h2", {}, "Waiting for you"), questions),
    h("section", {}, h("h2", {}, "Changed tools"), pins),
    h("section", {}, h("div", { class: "heading" }, h("h2", {}, "Tokens"), button("New token", () => create(look))), tokens.node),
    h("section", {}, h("h2", {}, "People"), people.node),
    h("section", {}, h("h2", {}, "Audit"), audit.node));
  let shownQuestions = "";
  let shownPins = "";

  async function revoke(one) {
    const words = one.is_console ? "The browser that has it is locked out at once. It may be this one." : "Its clients are disconnected at once.";
    if (await confirm(`Revoke ${one.name} (${one.id})?`, words, "Revoke")) { await attempt(() => ask("revoke_token", { name: one.id }), `${one.name} is revoked.`); look(); }
  }

  async function revokePerson(one) {
    if (await confirm(`Revoke ${one.label}?`, "All their sessions and calls end at once, and new tokens are refused.", "Revoke")) { await attempt(() => ask("revoke_person", { label: one.label }), `${one.label} is revoked.`); look(); }
  }

  async function restorePerson(one) {
    await attempt(() => ask("revoke_person", { label: one.label, undo: true }), `${one.label} may come back.`);
    look();
  }

  async function look() {
    const picture = await attempt(() => ask("access"));
    const entries = await attempt(() => ask("audit", { query: app.filter, limit: 100 }));
    if (picture) {
      trouble.replaceChildren(...picture.trouble.map((words) => h("p", { class: "note error" }, words)));
      tokens.show([...picture.tokens].reverse());
      people.show(picture.people ?? []);
      drawPins(picture.pins);
    }
    if (entries) audit.show(entries.records);
  }

  function drawPins(reviews) {
    const now = JSON.stringify(reviews);
    if (now === shownPins) return;
    shownPins = now;
    pins.replaceChildren(...(reviews.length ? reviews.map(review) : [h("p", { class: "empty" }, "All tools are as pinned.")]));
  }

  function review(one) {
    const accept = async () => {
      if (await confirm(`Accept the tools of ${one.server}?`, "They are pinned as shown, and can be called.", "Accept")) { await attempt(() => ask("accept_pins", { server: one.server, digest: one.digest }), "Accepted."); look(); }
    };
    return h("div", { class: "card warning" }, h("div", { class: "heading" }, h("h3", {}, one.server), button("Accept", accept)),
      one.package && h("p", {}, `package ${one.package}`),
      one.tools.map((tool) => h("details", {}, h("summary", {}, `${tool.tool} (${tool.change})`, tool.findings.length > 0 && h("strong", {}, ` ${counted(tool.findings.length, "finding")}`)),
        tool.findings.map((words) => h("p", { class: "note error" }, words)), differenceView([...tool.difference]))));
  }

  function show() {
    const open_ = app.state.questions ?? [];
    const now = JSON.stringify(open_);
    if (now === shownQuestions) return;
    shownQuestions = now;
    questions.replaceChildren(...(open_.length ? open_.map((one) => h("div", { class: "card warning" },
      h("div", { class: "heading" }, h("h3", {}, one.kind === "policy" ? `A call of ${one.server} needs your word` : `${one.server} asks`), button("Answer", () => app.answer(one))),
      h("p", { class: "said" }, one.params.message ?? one.method), one.client && h("p", { class: "quiet" }, `for ${one.client}`)))
      : [h("p", { class: "empty" }, "No question is open.")]));
  }

  return { node, table: tokens, show, look, every: 2000, keys: { n: () => create(look) }, help: "n creates a token" };
}

export { answer };
