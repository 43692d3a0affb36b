// The filter language of every list, as in the gateway: `server:github status:error >500ms text`.

const KEYS = ["server", "tool", "status", "client", "agent", "kind", "level", "since", "text", "trace"];
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
const ALIKE = {
  error: ["error", "failed", "timeout"],
  up: ["connected"],
  down: ["disconnected", "connecting", "error", "needs_auth"],
};
const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 };
const COMPARE = { ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b };
const HELP = "words to find, key:value with * as a wildcard, >500ms, <2s, since:10m, and - before a term to exclude it; keys: " + KEYS.join(", ");

export class BadFilter extends Error {
  constructor(words) { super(words); this.hint = HELP; }
}

function seconds(text) {
  if (!/^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(text.trim())) throw new BadFilter(`'${text}' is not a duration`);
  return [...text.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)].reduce((sum, [, amount, unit]) => sum + amount * UNITS[unit], 0);
}

function split(text) {
  const words = [];
  let word = "", open = "", begun = false;
  for (let at = 0; at < text.length; at++) {
    const one = text[at];
    if (open) {
      if (one === open) open = "";
      else if (one === "\\" && open === '"' && '"\\'.includes(text[at + 1])) word += text[++at];
      else word += one;
    } else if (one === '"' || one === "'") { open = one; begun = true; }
    else if (one === "\\") { word += text[++at] ?? ""; begun = true; }
    else if (/\s/.test(one)) { if (begun) words.push(word); word = ""; begun = false; }
    else { word += one; begun = true; }
  }
  if (open) throw new BadFilter("a quotation mark is not closed");
  return begun ? [...words, word] : words;
}

function glob(pattern) {
  const escaped = pattern.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".").replace(/\[!/g, "[^");
  try { return new RegExp(`^${escaped}$`, "s"); } catch { throw new BadFilter(`'${pattern}' cannot be matched`); }
}

const contains = (fields, text) => Object.values(fields).some((one) => typeof one === "string" && one.toLowerCase().includes(text));

function term(word) {
  if (word.startsWith("-") && word.length > 1) {
    const excluded = term(word.slice(1));
    return (fields) => !excluded(fields);
  }
  const found = /^(>=|<=|>|<)(.+)$/.exec(word);
  if (found) {
    const limit = seconds(found[2]);
    return ({ seconds: value }) => typeof value === "number" && COMPARE[found[1]](value, limit);
  }
  const colon = word.indexOf(":");
  const key = colon < 0 ? "" : word.slice(0, colon), value = word.slice(colon + 1).toLowerCase();
  if (!/^\p{L}+$/u.test(key)) return (fields) => contains(fields, word.toLowerCase());
  if (!KEYS.includes(key)) throw new BadFilter(`a filter has no key '${key}'`);
  if (key === "since") {
    const start = Date.now() / 1000 - seconds(value);
    return ({ at }) => typeof at === "number" && at >= start;
  }
  if (key === "level") {
    if (!LEVELS.includes(value)) throw new BadFilter(`'${value}' is not a level`);
    const wanted = LEVELS.slice(LEVELS.indexOf(value));
    return ({ level }) => wanted.includes(level);
  }
  if (key === "text") return (fields) => contains(fields, value);
  if (key === "trace") return ({ trace }) => String(trace ?? "").startsWith(value);
  if (key === "status" && ALIKE[value]) return ({ status }) => ALIKE[value].includes(String(status ?? "").toLowerCase());
  const pattern = glob(value);
  return (fields) => pattern.test(String(fields[key] ?? "").toLowerCase());
}

// Compile a filter to a test; throws `BadFilter` if it is not valid.
export function parse(text) {
  const terms = split(text).map(term);
  return (fields) => terms.every((one) => one(fields));
}
