// Elements, and texts for people. Nothing here turns a string into markup: servers' strings stay text.

const SVG = "http://www.w3.org/2000/svg";
// control characters, invisible ones, and direction overrides
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

export function clean(text) {
  return String(text ?? "").replace(HIDDEN, (one) => (one === "\r" ? "" : `\\u{${one.codePointAt(0).toString(16)}}`));
}

function fill(node, properties, content) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
  node.append(...nodes(content));
  return node;
}

export function nodes(content) {
  return [content].flat(9).filter((one) => one !== undefined && one !== null && one !== false)
    .map((one) => (one instanceof Node ? one : document.createTextNode(clean(one))));
}

export const h = (tag, properties, ...content) => fill(document.createElement(tag), properties, content);
export const svg = (tag, properties, ...content) => fill(document.createElementNS(SVG, tag), properties, content);

export function button(label, act, properties) {
  return h("button", { type: "button", onclick: act, ...properties }, label);
}

// as in `http/addresses.py`: what every program reads as the same host, which can be shown
const PLAIN = /^(https?):\/\/(\[[0-9A-Fa-f:]+\]|[\w-]+(?:\.[\w-]+)*)(?::[1-9][0-9]{0,4})?(?:[/?#][\w.~:/?&=%+,;@#[\]-]*)?$/;
const HERE = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

export function webAddress(address) {
  const [, scheme, host] = (String(address).length <= 8192 && PLAIN.exec(address)) || [];
  let url;
  try { url = new URL(address); } catch { return null; }
  // a browser shortens IPv6 addresses, and turns numbers into IPv4 ones
  if (!host || url.hostname.startsWith("[::ffff:") || (!host.startsWith("[") && url.hostname !== host.toLowerCase())) return null;
  return scheme === "https" || HERE.test(url.hostname) ? url : null;
}

export function link(address, label) {
  const url = webAddress(address);
  if (!url) return h("code", {}, address);
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, label ?? url.href);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  return seconds < 60 ? `${Number(seconds.toPrecision(3))} s` : `${Math.round(seconds / 60)} min`;
}

const two = (number) => String(number).padStart(2, "0");
export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
export const number = (value) => (value ? value.toLocaleString("en") : "-");

export function clock(at) {
  const day = new Date(at * 1000);
  return `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}`;
}

export function moment(at) {
  if (!at) return "never";
  const day = new Date(at * 1000);
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${two(day.getHours())}:${two(day.getMinutes())}`;
}

// Data that nobody reads, such as a picture: its size is enough.
const DATA = /[A-Za-z0-9+/]{400,}={0,2}/g;

export function readable(text) {
  let indented = text;
  try { indented = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it was cut */ }
  return indented.replace(DATA, (data) => `${data.slice(0, 24)}… (${Math.round((data.length * 3) / 4 / 1024).toLocaleString("en")} KB of base64)`);
}

// A table that keeps its row elements while their cells change, so that the focus stays.
export class Table {
  constructor(columns, { label, key, tone = () => "", open, actions, empty = "Nothing yet." }) {
    Object.assign(this, { columns, key, tone, open, actions, rows: new Map() });
    this.body = h("tbody");
    this.empty = empty;
    // nobody knows yet whether there is anything
    this.note = h("div", { class: "empty", role: "status" }, "Loading…");
    const titles = columns.map((one) => h("th", { scope: "col", class: one.class }, one.title));
    if (actions) titles.push(h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")));
    const table = h("table", {}, h("thead", {}, h("tr", {}, titles)), this.body);
    this.scroll = h("div", { class: "scroll", hidden: true, role: "region", "aria-label": label, tabindex: 0 }, table);
    this.node = h("div", { class: "list" }, this.scroll, this.note);
  }

  show(values, empty = this.empty) {
    const seen = new Set();
    let before = null;
    for (const value of values) {
      const key = String(this.key(value));
      if (seen.has(key)) continue;
      seen.add(key);
      const row = this.rows.get(key) ?? this.#made(key);
      row.value = value;
      this.#draw(row);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (row.node !== place) this.body.insertBefore(row.node, place);
      before = row.node;
    }
    let isLost = false;
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      isLost ||= row.node.contains(document.activeElement);
      row.node.remove();
      this.rows.delete(key);
    }
    this.note.hidden = seen.size > 0;
    // kept while it is the same: a button in it may have the focus
    if (!seen.size && this.shown !== empty) { this.shown = empty; this.note.replaceChildren(...nodes(empty)); }
    this.scroll.hidden = seen.size === 0;
    // move the focus if its row is removed
    if ((this.wanted || isLost) && seen.size) this.move(0);
  }

  #made(key) {
    const row = { node: h("tr"), cells: [], drawn: null, value: null };
    row.node.row = row;
    this.columns.forEach((column, index) => {
      const cell = h("td", { class: column.class, "data-title": index > 0 && typeof column.title === "string" ? column.title : undefined });
      if (index === 0 && this.open) {
        row.main = button("", () => this.open(row.value), { class: "main" });
        cell.append(row.main);
      }
      row.cells.push(cell);
      row.node.append(cell);
    });
    if (this.actions) {
      row.actions = h("td", { class: "actions" });
      row.node.append(row.actions);
    }
    this.rows.set(key, row);
    return row;
  }

  #draw(row) {
    const drawn = JSON.stringify(row.value);
    if (drawn === row.drawn) return;
    row.drawn = drawn;
    row.node.className = this.tone(row.value);
    this.columns.forEach((column, index) => {
      const target = index === 0 && row.main ? row.main : row.cells[index];
      target.replaceChildren(...nodes(column.cell(row.value)));
      row.cells[index].classList.toggle("bare", ["", "-"].includes(row.cells[index].textContent) && !row.cells[index].querySelector("svg"));
    });
    if (!row.actions) return;
    // buttons are recreated only if they differ: one of them may have the focus
    const wanted = this.actions(row.value);
    const names = wanted.map(([label]) => label).join("|");
    if (row.names === names) return;
    row.names = names;
    row.actions.replaceChildren(...wanted.map(([label, act]) => button(label, () => act(row.value), { class: "small" })));
  }

  // The row that has the focus, or the one that was last opened.
  get current() {
    const row = document.activeElement?.closest("tr")?.row;
    return row && this.body.contains(row.node) ? row.value : null;
  }

  move(step) {
    const rows = [...this.body.children];
    // if the list is still empty, focus its first row as soon as there is one
    this.wanted = !rows.length;
    if (this.wanted) return;
    const at = rows.indexOf(document.activeElement?.closest("tr"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))];
    next.row.main?.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}
