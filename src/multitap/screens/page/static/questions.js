// Servers' questions during a call, and calls that need approval.

import { button, h, link } from "./dom.js";
import { open } from "./dialogs.js";
import { formFor } from "./forms.js";

const text = (content) => (content?.type === "text" ? content.text : `(${content?.type ?? "unknown"})`);

function sampling(params, finish) {
  const said = (params.messages ?? []).map((one) => h("p", {}, h("strong", {}, one.role, ": "), [one.content].flat().map(text).join("\n")));
  const answer = h("textarea", { rows: 4, id: "sampled", required: true });
  return h("form", { onsubmit: (event) => {
    event.preventDefault();
    finish({ result: { role: "assistant", model: "human", stopReason: "endTurn", content: { type: "text", text: answer.value } } });
  } }, params.systemPrompt && h("p", { class: "said" }, params.systemPrompt), said,
  h("div", { class: "field" }, h("label", { for: "sampled" }, "Answer in place of a model"), answer),
  h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Answer"), button("Refuse", () => finish({ error: "the person refused" }))));
}

function elicitation(params, finish) {
  const decline = button("Decline", () => finish({ result: { action: "decline" } }));
  const words = h("p", { class: "said" }, params.message);
  if (params.mode === "url") {
    // opening it is the consent: the server must know before the person comes back
    const page = link(params.url, "Open the page");
    page.addEventListener("click", () => finish({ result: { action: "accept" } }));
    // as the browser parses it: look-alike letters are spelled out
    const warning = page.href && h("p", { class: "quiet" }, "on the host ", h("strong", {}, page.host), "; do not open what you do not trust");
    return h("div", {}, words, h("p", {}, h("code", {}, params.url)), warning, h("div", { class: "buttons" }, page.href ? page : h("span", {}, "This is not a plain web address."), decline));
  }
  const form = formFor(params.requestedSchema ?? {});
  const wrong = h("p", { class: "note error", role: "alert", hidden: true });
  return h("form", { onsubmit: (event) => {
    event.preventDefault();
    try {
      finish({ result: { action: "accept", content: form.read() } });
    } catch (error) {
      wrong.hidden = false;
      wrong.textContent = error.message;
    }
  } }, words, form.node, wrong, h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Send"), decline));
}

// Ask the person a question; returns the answer, or a refusal.
export function answer(question) {
  return new Promise((resolve) => {
    let reply = question.method === "elicitation/create" ? { result: { action: "cancel" } } : { error: "the person closed the question" };
    let node = null;
    const finish = (said) => { reply = said; node.close(); };
    const params = question.params ?? {};
    const title = question.kind === "policy" ? "May this call be made?" : `${question.server} asks`;
    const asker = question.client && h("p", { class: "quiet" }, `for ${question.client}`);
    let view = h("p", {}, `This page cannot answer ${question.method}.`);
    if (question.method === "elicitation/create") view = elicitation(params, finish);
    else if (question.method === "sampling/createMessage") view = sampling(params, finish);
    node = open(title, [asker, view], { onClose: () => resolve(reply) });
    [...node.querySelectorAll(".fields input, .fields textarea, .fields select, textarea, a")].find((one) => one.checkVisibility())?.focus();
  });
}
