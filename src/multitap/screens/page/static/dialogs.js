// Windows over the page: texts, forms and errors.

import { button, clean, h, nodes } from "./dom.js";

export function open(title, content, { onClose, wide = false } = {}) {
  const before = document.activeElement;
  const close = button("Close", () => node.close(), { class: "close" });
  const heading = h("h2", { id: `title-${++count}` }, title);
  const node = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": heading.id },
    h("div", { class: "bar-top" }, heading, close), h("div", { class: "inside" }, content));
  node.addEventListener("close", () => {
    node.remove();
    onClose?.();
    before?.focus?.();
  });
  node.addEventListener("click", (event) => { if (event.target === node) node.close(); });
  document.body.append(node);
  node.showModal();
  return node;
}

let count = 0;

export const code = (text, properties) => h("pre", { class: "code", tabindex: 0, ...properties }, text);

export function tell(words, tone = "") {
  const line = h("p", { class: `toast ${tone}` }, words);
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), tone === "error" ? 12000 : 5000);
}

export function complain(error) {
  if (error.name === "AbortError") return;
  tell([clean(error.message), error.hint && h("small", {}, error.hint)], "error");
}

// Run an action that may fail, and show the error if it does.
export async function attempt(work, done) {
  try {
    const value = await work();
    if (done) tell(done);
    return value;
  } catch (error) {
    complain(error);
    return undefined;
  }
}

export function confirm(title, words, label) {
  return new Promise((resolve) => {
    let agreed = false;
    const node = open(title, [h("p", {}, words), h("div", { class: "buttons" },
      button(label, () => { agreed = true; node.close(); }, { class: "primary", autofocus: true }),
      button("Cancel", () => node.close()))], { onClose: () => resolve(agreed) });
  });
}

// A line diff of two texts: removed, added and unchanged lines.
export function difference(before, after) {
  const old = before.split("\n").slice(0, 1500), fresh = after.split("\n").slice(0, 1500);
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start++;
  let oldEnd = old.length, freshEnd = fresh.length;
  while (oldEnd > start && freshEnd > start && old[oldEnd - 1] === fresh[freshEnd - 1]) { oldEnd--; freshEnd--; }
  const rows = oldEnd - start, columns = freshEnd - start;
  const lines = old.slice(Math.max(0, start - 3), start).map((one) => ` ${one}`);
  if (rows * columns > 1e6) {
    lines.push(...old.slice(start, oldEnd).map((one) => `-${one}`), ...fresh.slice(start, freshEnd).map((one) => `+${one}`));
  } else {
    const best = Array.from({ length: rows + 1 }, () => new Uint32Array(columns + 1));
    for (let i = rows - 1; i >= 0; i--) {
      for (let j = columns - 1; j >= 0; j--) {
        best[i][j] = old[start + i] === fresh[start + j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < rows || j < columns) {
      if (i < rows && j < columns && old[start + i] === fresh[start + j]) { lines.push(` ${old[start + i]}`); i++; j++; }
      else if (j >= columns || (i < rows && best[i + 1][j] >= best[i][j + 1])) lines.push(`-${old[start + i++]}`);
      else lines.push(`+${fresh[start + j++]}`);
    }
  }
  lines.push(...old.slice(oldEnd, oldEnd + 3).map((one) => ` ${one}`));
  return lines;
}

export function differenceView(lines) {
  const marks = { "+": "came", "-": "went", "@": "place" };
  return h("pre", { class: "code difference", tabindex: 0 }, lines.map((line) => h("span", { class: marks[line[0]] ?? "" }, line, "\n")));
}

export { nodes };
