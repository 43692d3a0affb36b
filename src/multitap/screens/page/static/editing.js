// Changes of the files: servers are added, renamed and removed, tools renamed and described.

import { button, h } from "./dom.js";
import { attempt, code, complain, confirm, open, tell } from "./dialogs.js";
import { act, ask } from "./gateway.js";

const UNDO = "In a terminal, multitap undo reverts it.";

// The file is changed in any case; the gateway may not be able to use it.
export function report(answer, words) {
  if (answer.taken === false) tell([words, h("small", {}, `It has no effect yet: ${answer.problems.join("; ")}`)], "error");
  else tell(words);
}

const field = (label, input, help) => h("div", { class: "field" }, h("label", { for: input.id }, label), help && h("small", {}, help), input);

// A form that stays open until its action succeeds.
function formWindow(title, content, label, submit, { wide = false } = {}) {
  const send = h("button", { type: "submit", class: "primary" }, label);
  const wrong = h("p", { class: "note error", role: "alert", hidden: true });
  const node = open(title, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    wrong.hidden = true;
    try {
      await submit();
      node.close();
    } catch (error) {
      wrong.hidden = false;
      wrong.replaceChildren(error.message, ...(error.hint ? [h("small", {}, ` ${error.hint}`)] : []));
    }
    send.disabled = false;
  } }, content, wrong, h("div", { class: "buttons" }, send, button("Cancel", () => node.close()))), { wide });
  node.querySelector("input, textarea")?.focus();
  return node;
}

export function rename(row) {
  const name = h("input", { id: "new-name", required: true, maxlength: 128, value: row.name, autocomplete: "off" });
  formWindow(`Rename ${row.name}`, [h("p", {}, "Names of its tools change as well; profiles and agents that mention it follow."), field("Name", name)], "Rename", async () => {
    report(await ask("rename_server", { server: row.name, name: name.value.trim() }), `${row.name} is now ${name.value.trim()}. ${UNDO}`);
  });
}

export async function remove(row) {
  const words = `Its entry, its pins and the folder of its sandbox are removed. ${UNDO}`;
  if (await confirm(`Remove ${row.name}?`, words, "Remove")) await attempt(async () => report(await ask("remove_server", { server: row.name }), `${row.name} is removed. ${UNDO}`));
}

export function changeTool(tool) {
  const before = tool.name.startsWith(`${tool.server}_`) ? tool.name.slice(tool.server.length + 1) : tool.name;
  const name = h("input", { id: "tool-name", maxlength: 64, value: before, autocomplete: "off", placeholder: tool.tool });
  const text = h("textarea", { id: "tool-text", rows: 6, value: tool.description });
  const changed = (input, old) => (input.value.trim() === old.trim() ? null : input.value.trim());
  formWindow(`Change ${tool.name}`, [field("Name", name, `Empty for the server's own: ${tool.tool}. Its server's name is put in front of it.`),
    field("Description", text, "What models read. Empty for the server's own.")], "Save", async () => {
    await ask("change_tool", { server: tool.server, tool: tool.tool, name: changed(name, before), description: changed(text, tool.description) });
    tell(`${tool.name} is changed. ${UNDO}`);
  });
}

// A program that others wrote starts only after its review, with a key that only a terminal of the user gives.
export async function enable(server) {
  const review = await attempt(() => ask("review_disabled", { server }));
  if (!review) return;
  if (review.is_own) { await attempt(() => ask("switch", { server, on: true }), `${server} is enabled.`); return; }
  const key = h("input", { id: "new-key", type: "password", required: true, autocomplete: "off" });
  formWindow(`Enable ${server}?`, [h("p", {}, "Others wrote this program. It has not run yet."), code(review.lines.join("\n")),
    field("A new key", key, ["In a terminal, ", h("code", {}, "multitap console --no-open"), " prints a link; paste it here."]),
    h("p", { class: "quiet" }, review.question.replace("add it", "enable it"))], "Enable", async () => {
    await act("enable_reviewed", { server, digest: review.digest, key: key.value });
    tell(`${server} is enabled.`);
  }, { wide: true });
}

function inputFor(one, at) {
  const common = { id: `answer-${at}`, autocomplete: "off", required: one.required };
  const input = one.choices.length
    ? h("select", common, !one.required && h("option", { value: "" }, ""), one.choices.map((choice) => h("option", { value: choice }, choice)))
    : h("input", { ...common, type: one.secret ? "password" : "text", placeholder: one.default ?? "" });
  return { name: one.name, input, node: field(one.required ? `${one.name} (required)` : one.name, input, one.description) };
}

// The review of a new server, with its inputs: the same lines and question as `multitap add`.
async function reviewWindow(source, what) {
  const first = await attempt(() => ask("review_server", { new: { source, what } }));
  if (!first) return;
  const name = h("input", { id: "server-name", required: true, maxlength: 128, value: first.name, autocomplete: "off" });
  const answers = first.inputs.map(inputFor);
  const lines = code(first.lines.join("\n"));
  let review = first;
  const wanted = () => ({ source, what, name: name.value.trim(), answers: Object.fromEntries(answers.map((one) => [one.name, one.input.value]).filter(([, value]) => value)) });
  const renew = async () => {
    try { review = await ask("review_server", { new: wanted() }); lines.textContent = ""; lines.append(review.lines.join("\n")); } catch (error) { complain(error); }
  };
  for (const one of [{ input: name }, ...answers]) one.input.addEventListener("change", renew);
  const words = first.is_own ? first.question : "It is written to your file, disabled. Enabling it shows this once more, and asks for a key.";
  formWindow(`Add ${first.name}`, [field("Name", name), answers.map((one) => one.node), lines, h("p", { class: "quiet" }, words)], "Add", async () => {
    await renew();
    const added = await act("add_server", { new: wanted(), digest: review.digest });
    tell(`${added} is added. ${UNDO}`);
    if (!review.is_own) enable(added);
  }, { wide: true });
}

export function addServer() {
  const text = h("input", { id: "what", type: "search", autocomplete: "off", placeholder: "https://… or words such as: read pdf files", maxlength: 500 });
  const found = h("div", { class: "cards" });
  let asked = 0;
  async function search() {
    const mine = ++asked;
    const words = text.value.trim();
    if (/^https?:\/\//.test(words)) {
      found.replaceChildren(h("div", { class: "card heading" }, h("code", {}, words), button("Review", () => { node.close(); reviewWindow("url", words); }, { class: "primary" })));
      return;
    }
    const answer = await attempt(() => ask("find_servers", { text: words }));
    if (!answer || mine !== asked) return;
    found.replaceChildren(...answer.servers.map((one) => h("div", { class: "card heading" },
      h("div", {}, h("strong", {}, one.name), " ", h("span", { class: "quiet" }, one.source), h("p", {}, one.description)),
      button("Review", () => { node.close(); reviewWindow(one.source, one.name); }))),
    ...(answer.servers.length ? [] : [h("p", { class: "empty" }, "Nothing was found.")]), ...(answer.trouble ? [h("p", { class: "quiet" }, `The registry is not searched: ${answer.trouble}`)] : []));
  }
  let later = 0;
  text.addEventListener("input", () => { clearTimeout(later); later = setTimeout(search, 300); });
  const node = open("Add a server", [field("Address, or what it does", text, "Servers of the catalog and the registry are programs that others wrote: nothing of them runs before you have seen what they would do. Commands are added in a terminal."), found], { wide: true });
  text.focus();
  search();
}
