// The page: seven places, one stream, the same keys as in the terminal.

import { button, clean, counted, h } from "./dom.js";
import { ask, follow, leave, whenLocked } from "./gateway.js";
import { attempt, complain, open, tell } from "./dialogs.js";
import { parse } from "./filters.js";
import { answer } from "./questions.js";
import servers from "./servers.js";
import calls from "./calls.js";
import tools from "./tools.js";
import clients from "./clients.js";
import access from "./access.js";
import log from "./log.js";
import tasks from "./tasks.js";

const PLACES = { servers, calls, tools, clients, access, log, tasks };
const TITLES = { servers: "Servers", calls: "Calls", tools: "Tools", clients: "Clients", access: "Access", log: "Log", tasks: "Tasks" };
const MOST_CALLS = 500;
const MOST_NAMES = 4;

// Names in one line: the first ones, and how many more there are.
const few = (names) => names.slice(0, MOST_NAMES).join(", ") + (names.length > MOST_NAMES ? ` and ${names.length - MOST_NAMES} more` : "");

class App {
  state = {};
  calls = [];
  filter = "";
  #passes = () => true;
  #tools = { revision: -1, list: [] };
  #asked = new Set();

  constructor() {
    this.places = {};
    this.draw();
    addEventListener("popstate", () => this.enter());
    document.addEventListener("keydown", (event) => this.press(event));
    whenLocked(() => this.lock());
    this.enter();
    this.stop = follow((frame) => this.take(frame), (state) => this.connected(state));
    setInterval(() => this.beat(), 250);
  }

  draw() {
    this.tabs = Object.fromEntries(Object.entries(TITLES).map(([name, title], at) => [name, h("a", {
      href: `/console/${name}`, title: `key ${at + 1}`, onclick: (event) => { event.preventDefault(); this.visit(name, ""); },
    }, title)]));
    this.search = h("input", { type: "search", "aria-label": "Filter", placeholder: "filter: server:github status:error >500ms text", spellcheck: "false", autocomplete: "off", maxlength: 1000 });
    this.search.addEventListener("input", () => this.type(this.search.value));
    this.wrong = h("p", { class: "wrong", role: "alert", hidden: true });
    this.status = h("span", { class: "status" }, "connecting");
    this.summary = h("p", { class: "summary", "aria-live": "off" });
    this.trouble = h("div", { class: "trouble", role: "status" });
    this.waiting = button("", () => this.visit("access", ""), { class: "waiting", hidden: true });
    const theme = button("Theme", () => this.theme(), { class: "small", title: "Switch between light and dark" });
    const out = button("Lock", () => attempt(leave).then(() => this.lock()), { class: "small", title: "Lock this browser out" });
    const keys = button("Keys", () => this.help(), { class: "small" });
    this.header = h("header", { class: "top" }, h("a", { href: "#main", class: "skip" }, "Skip to the content"), h("strong", { class: "brand" }, "multitap"),
      h("nav", { "aria-label": "Places" }, Object.values(this.tabs)), h("form", { role: "search", onsubmit: (event) => event.preventDefault() }, this.search),
      h("div", { class: "tools" }, this.status, keys, theme, out));
    this.heading = h("h1", { class: "unseen" }, "Servers");
    this.main = h("main", { id: "main", tabindex: -1 });
    const toasts = h("div", { id: "toasts", role: "status", "aria-live": "polite" });
    document.body.replaceChildren(this.header, this.wrong, h("div", { class: "under" }, this.summary, this.waiting), this.trouble, this.main, toasts);
    const chosen = localStorage.getItem("theme");
    if (chosen) document.documentElement.dataset.theme = chosen;
  }

  theme() {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const chosen = dark ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem("theme", chosen);
  }

  visit(name, filter = "") {
    const query = filter ? `?filter=${encodeURIComponent(filter)}` : "";
    history.pushState(null, "", `/console/${name}${query}`);
    this.enter();
  }

  enter() {
    const name = location.pathname.split("/")[2];
    this.place = PLACES[name] ? name : "servers";
    this.search.value = new URLSearchParams(location.search).get("filter") ?? "";
    this.places[this.place] ??= PLACES[this.place](this);
    for (const [one, tab] of Object.entries(this.tabs)) {
      if (one === this.place) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = `${TITLES[this.place]} - Multitap`;
    this.heading.textContent = TITLES[this.place];
    this.main.replaceChildren(this.heading, this.here.node);
    this.main.dataset.place = this.place;
    this.type(this.search.value, true);
  }

  get here() { return this.places[this.place]; }

  type(text, entering = false) {
    try {
      this.#passes = parse(text);
      this.filter = text;
      this.wrong.hidden = true;
    } catch (error) {
      this.wrong.hidden = false;
      this.wrong.textContent = `${clean(error.message)}. ${error.hint ?? ""}`;
      if (entering) this.filter = "";
      return;
    }
    if (!entering) history.replaceState(null, "", `/console/${this.place}${text ? `?filter=${encodeURIComponent(text)}` : ""}`);
    this.here.looked = 0;
    this.show();
  }

  // The text for an empty list: that of the place, unless a filter is the reason.
  empty(noun) { return this.filter ? `No ${noun} match the filter.` : undefined; }

  filtered(rows, fields) { return rows.filter((row) => this.#passes(fields(row))); }

  async tools() {
    if (this.#tools.revision !== this.state.revision) {
      const revision = this.state.revision;
      this.#tools = { revision, list: await ask("tools") };
    }
    return this.#tools.list;
  }

  take(frame) {
    const { all, calls: fresh, ...rest } = frame;
    Object.assign(this.state, rest);
    if (rest.counters?.revision !== undefined) this.state.revision = rest.counters.revision;
    if (all) this.calls = all;
    if (fresh) this.calls = this.calls.concat(fresh).slice(-MOST_CALLS);
    if (frame.questions) this.ring(frame.questions);
    this.dirty = true;
    if (all) this.show();
  }

  // drawn at most four times a second, however fast frames arrive
  beat() {
    if (document.hidden) return;
    if (this.dirty) { this.dirty = false; this.show(); }
    const here = this.here, now = performance.now();
    if (here.look && !here.looking && now - (here.looked || -1e9) >= (here.every ?? 1000)) {
      here.looking = true;
      here.looked = now;
      Promise.resolve(here.look()).finally(() => { here.looking = false; });
    }
  }

  show() {
    const { counters, servers: rows = [], trouble = [], untrusted = [], about } = this.state;
    if (!about) return;
    const bad = rows.filter((row) => row.tone === "error" || row.tone === "warning");
    const errors = Object.values(this.state.figures?.servers ?? {}).reduce((sum, one) => sum + one.total.errors, 0);
    const parts = [counted(rows.length, "server"), counted(counters?.made ?? 0, "call"), `${counters?.inFlight ?? 0} under way`];
    const attention = bad.length > 0 && h("strong", { class: "attention" }, `needs attention: ${few(bad.map((row) => row.name))}`);
    const failed = errors > 0 && h("span", {}, counted(errors, "error"));
    this.summary.replaceChildren(...[...parts.map((one) => h("span", {}, one)), failed, attention].filter(Boolean));
    const words = [...trouble, ...untrusted.map((one) => `Not trusted and not used: parts of ${one.project}. In a terminal, ${one.fix}; T shows what they would do.`)];
    if (JSON.stringify(words) !== this.said) {
      this.said = JSON.stringify(words);
      this.trouble.replaceChildren(...words.map((one) => h("p", { class: "note error" }, one)));
    }
    this.here.show();
  }

  connected(state) {
    if (this.locked) return;
    this.status.textContent = state === "live" ? "live" : "no connection";
    this.status.className = `status ${state}`;
  }

  ring(questions) {
    this.waiting.hidden = questions.length === 0;
    this.waiting.textContent = questions.length === 1 ? "1 question waits for you" : `${questions.length} questions wait for you`;
    const fresh = questions.filter((one) => !this.#asked.has(one.number));
    for (const one of fresh) this.#asked.add(one.number);
    if (fresh.length && !document.querySelector("dialog[open]")) this.answer(fresh[0]);
  }

  async answer(question) {
    const reply = await answer(question);
    // closing the window leaves the question open
    if (reply.result?.action === "cancel" || reply.error === "the person closed the question") return;
    const taken = await attempt(() => ask("answer_question", { number: question.number, ...reply }));
    if (taken === false) tell("The question is no longer open.", "error");
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.locked) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && event.target === this.search) { this.search.blur(); this.here.table?.move(0); return; }
    if (event.target === this.search && (event.key === "Enter" || event.key === "ArrowDown")) { event.preventDefault(); this.here.table?.move(0); return; }
    if (typing || document.querySelector("dialog[open]")) return;
    const at = Number(event.key);
    const names = Object.keys(PLACES);
    const acts = {
      f: () => this.search.focus(), "/": () => this.search.focus(), "?": () => this.help(),
      ArrowDown: () => this.here.table?.move(1), ArrowUp: () => this.here.table?.move(-1), j: () => this.here.table?.move(1), k: () => this.here.table?.move(-1),
      ...this.here.keys,
    };
    const act = at >= 1 && at <= names.length ? () => this.visit(names[at - 1]) : acts[event.key];
    if (!act) return;
    event.preventDefault();
    Promise.resolve(act()).catch(complain);
  }

  help() {
    open("Keys", h("dl", {}, [["1 to 7", "go to a place"], ["f or /", "filter"], ["arrows, j, k", "move"], ["Enter", "open"], ["Escape", "close"],
      ...Object.entries(TITLES).map(([name, title]) => [title, (this.places[name] ??= PLACES[name](this)).help])].flatMap(([key, words]) => [h("dt", {}, key), h("dd", {}, words)])));
  }

  lock() {
    if (this.locked) return;
    this.locked = true;
    this.stop?.();
    for (const one of document.querySelectorAll("dialog")) one.close();
    this.state = {};
    this.calls = [];
    document.title = "Locked - Multitap";
    document.body.replaceChildren(h("main", { id: "main", class: "locked" }, h("h1", {}, "The console is locked"),
      h("p", {}, "Its key was revoked, or is too old. Get a new link: ", h("code", {}, "multitap console"))));
  }
}

// without a key there is nothing to do: the served page says how to get one
if (document.querySelector("main[data-place]")) new App();
