// Calls that a person makes here: the form, servers' questions, the result.

import { button, duration, h } from "./dom.js";
import { open, tell } from "./dialogs.js";
import { act } from "./gateway.js";
import { answer } from "./questions.js";
import { resultView } from "./results.js";
import { formFor } from "./forms.js";

export function callTool(tool, known, remark = "") {
  const form = formFor(tool.inputSchema, known);
  const out = h("div", { class: "outcome", "aria-live": "polite" });
  const submit = h("button", { type: "submit", class: "primary" }, "Call");
  let under = null;
  const stop = button("Stop", () => under?.abort(), { hidden: true });
  const view = h("form", { onsubmit: (event) => { event.preventDefault(); call(); } },
    remark && h("p", { class: "note" }, remark),
    tool.description && h("p", { class: "said" }, tool.description),
    form.node, h("div", { class: "buttons" }, submit, stop, form.toggle), out);

  async function call() {
    let values;
    try { values = form.read(); } catch (error) { out.replaceChildren(h("p", { class: "note error", role: "alert" }, error.message)); return; }
    under = new AbortController();
    submit.disabled = true;
    stop.hidden = false;
    out.replaceChildren(h("p", { class: "quiet" }, "Calling…"));
    const started = performance.now();
    try {
      const answered = await act("call", { name: tool.name, arguments: values, person: true }, {
        signal: under.signal,
        onQuestion: answer,
        onStep: (step) => out.replaceChildren(h("p", { class: "quiet" }, `${step.message ?? "Working"}: ${step.done}${step.total ? ` of ${step.total}` : ""}`)),
      });
      const took = (performance.now() - started) / 1000;
      out.replaceChildren(h("p", { class: "quiet" }, `Answered in ${duration(took)}.`), resultView(answered.result));
    } catch (error) {
      const words = error.name === "AbortError" ? "Stopped." : error.message;
      out.replaceChildren(h("p", { class: "note error", role: "alert" }, words, error.hint && h("small", {}, ` ${error.hint}`)));
    }
    submit.disabled = false;
    stop.hidden = true;
  }
  const node = open(tool.name, view, { wide: true, onClose: () => under?.abort() });
  const places = [...node.querySelectorAll(".fields input, .fields textarea, .fields select, button.primary")];
  places.find((one) => one.checkVisibility())?.focus();
}

export async function logIn(server) {
  await act("login", { server }, { onQuestion: answer });
  tell(`Logged in to ${server}.`);
}
