// Markdown of tools as elements: only text nodes, so that nothing in it becomes markup of the page.

import { button, h, link } from "./dom.js";
import { code } from "./dialogs.js";

// as in `screens/markdown.py`: lines are joined, so that logs, code and data must stay as they are
const HEADING = /(?:^|\n[ \t]*\n)#{1,6} \S[^\n]*(?=\n[ \t]*\n|\n*$)/;
const MARKS = /^(?:```|~~~)|^\|?[ ]*:?-{3,}:?[ ]*\|[ :|-]*$|\*\*\S[^\n*]*\S?\*\*|\[[^\]\n]+\]\(https?:\/\/[^)\s]+\)/m;
const FENCE = /^ {0,3}(```|~~~)/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +/;
const RULE = /^ {0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;
const DIVIDER = /^\|?[ ]*:?-+:?[ ]*(?:\|[ ]*:?-+:?[ ]*)*\|?\s*$/;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|!?\[([^\]\n]*)\]\(([^)\s]+)\)|(?<![\w*])\*([^*\s][^*\n]*)\*(?!\w)|(?<!\w)_([^_\s][^_\n]*)_(?!\w)/g;
const LONGEST = 200000;
const DEEPEST = 8;

export const isMarkdown = (text) => text.length <= LONGEST && !/^\s*(?:\{|\[\{|<)/.test(text) && (HEADING.test(text) || MARKS.test(text));

function inline(text, depth = 0) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, mono, bold, label, address, ...slanted] = found;
    parts.push(text.slice(end, found.index));
    end = found.index + whole.length;
    const em = slanted.find((one) => one !== undefined);
    if (mono !== undefined) parts.push(h("code", {}, mono));
    else if (bold !== undefined) parts.push(h("strong", {}, depth < DEEPEST ? inline(bold, depth + 1) : bold));
    else if (address !== undefined) parts.push(label && label !== address ? [label, " (", link(address), ")"] : link(address));
    else parts.push(h("em", {}, em));
  }
  parts.push(text.slice(end));
  return parts;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());

function table(lines) {
  const [head, , ...rows] = lines.map(cells);
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((one) => h("th", { scope: "col" }, inline(one))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.slice(0, head.length).map((one) => h("td", {}, inline(one))))))));
}

function list(lines, depth) {
  const [, indent, number] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length) items.push([line.slice(found[0].length)]);
    else items.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  return h(number ? "ol" : "ul", { start: number && number !== "1" ? number : undefined }, items.map((one) => h("li", {}, one.length === 1 ? inline(one[0]) : blocks(one, depth + 1))));
}

// The lines from `start` on for which `holds` is true.
function run(lines, start, holds) {
  let end = start + 1;
  while (end < lines.length && holds(lines[end], end)) end++;
  return lines.slice(start, end);
}

function begins(lines, at) {
  return FENCE.test(lines[at]) || ITEM.test(lines[at]) || RULE.test(lines[at]) || /^(?:#{1,6} |>)/.test(lines[at])
    || (lines[at].includes("|") && DIVIDER.test(lines[at + 1] ?? "x"));
}

function blocks(lines, depth = 0) {
  if (depth > DEEPEST) return [h("p", {}, lines.join(" "))];
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let taken = [line];
    if (FENCE.test(line)) {
      const mark = FENCE.exec(line)[1];
      taken = run(lines, at, (one, place) => place === at + 1 || lines[place - 1].trim() !== mark);
      const isClosed = taken.length > 1 && taken.at(-1).trim() === mark;
      made.push(code(taken.slice(1, isClosed ? -1 : undefined).join("\n")));
    } else if (/^#{1,6} /.test(line)) {
      const level = line.indexOf(" ");
      made.push(h(`h${Math.min(6, level + 2)}`, {}, inline(line.slice(level + 1).replace(/ #+\s*$/, ""))));
    } else if (RULE.test(line)) made.push(h("hr"));
    else if (line.startsWith(">")) {
      taken = run(lines, at, (one) => one.startsWith(">"));
      made.push(h("blockquote", {}, blocks(taken.map((one) => one.replace(/^> ?/, "")), depth + 1)));
    } else if (ITEM.test(line)) {
      taken = run(lines, at, (one, place) => ITEM.test(one) || /^\s+\S/.test(one) || (!one.trim() && /^\s+\S|^[-*+] /.test(lines[place + 1] ?? "")));
      made.push(list(taken.filter((one) => one.trim()), depth));
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "x")) {
      taken = run(lines, at, (one) => one.includes("|"));
      made.push(table(taken));
    } else if (line.trim()) {
      taken = run(lines, at, (one, place) => one.trim() && !begins(lines, place));
      made.push(h("p", {}, inline(taken.map((one) => one.trim()).join(" "))));
    }
    at += taken.length;
  }
  return made;
}

// A text of a tool: formatted if it is Markdown, with a button for its source.
export function textView(text) {
  if (!isMarkdown(text)) return code(text);
  const formatted = h("div", { class: "markdown" }, blocks(text.split("\n")));
  const source = code(text, { hidden: true });
  const toggle = button("Source", () => {
    source.hidden = !source.hidden;
    formatted.hidden = !source.hidden;
    toggle.setAttribute("aria-pressed", String(!source.hidden));
  }, { class: "small", "aria-pressed": "false" });
  return h("div", {}, h("div", { class: "corner" }, toggle), formatted, source);
}
