// Forms made from a JSON schema, for arguments of tools and for servers' questions.

import { clean, h } from "./dom.js";

let last = 0;

function choices(schema) {
  const some = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(schema.enum)) return schema.enum.map((value, at) => [value, schema.enumNames?.[at] ?? value]);
  if (Array.isArray(some) && some.every((one) => one && "const" in one)) return some.map((one) => [one.const, one.title ?? one.const]);
  return null;
}

function kindOf(schema) {
  if (choices(schema)) return "choice";
  let type = schema.type;
  if (Array.isArray(type)) type = type.find((one) => one !== "null");
  if (!type && Array.isArray(schema.anyOf)) return kindOf(schema.anyOf.find((one) => one?.type !== "null") ?? {});
  if (type === "array" && schema.items && choices(schema.items)) return "choices";
  return ["string", "number", "integer", "boolean"].includes(type) ? type : "json";
}

const FORMATS = { email: "email", uri: "url", date: "date" };

// One field: its element, and `read()`, which returns a value, or undefined if it is empty.
function field(name, schema, required, known) {
  const id = `field-${++last}`;
  const kind = kindOf(schema);
  const value = known ?? schema.default;
  const words = [schema.description, kind === "json" && "JSON"].filter(Boolean).join(" ");
  const described = words ? `${id}-words` : null;
  const common = { id, name, "aria-describedby": described, required };
  let input, read;
  if (kind === "choice") {
    const some = choices(schema);
    input = h("select", common, !required && h("option", { value: "" }, ""), some.map(([one, title], at) => h("option", { value: at, selected: one === value }, title)));
    read = () => (input.value === "" ? undefined : some[Number(input.value)][0]);
  } else if (kind === "choices") {
    const some = choices(schema.items);
    const boxes = some.map(([one, title]) => [one, h("input", { type: "checkbox", checked: (value ?? []).includes(one) }), title]);
    input = h("div", { id, role: "group", "aria-label": name, class: "boxes" }, boxes.map(([, box, title]) => h("label", {}, box, " ", title)));
    read = () => { const chosen = boxes.filter(([, box]) => box.checked).map(([one]) => one); return chosen.length || required ? chosen : undefined; };
  } else if (kind === "boolean") {
    input = h("input", { id, name, type: "checkbox", "aria-describedby": described, checked: value === true });
    read = () => (input.checked || required || value !== undefined ? input.checked : undefined);
  } else if (kind === "number" || kind === "integer") {
    input = h("input", { ...common, type: "number", step: kind === "integer" ? 1 : "any", min: schema.minimum, max: schema.maximum, value: value ?? "" });
    read = () => (input.value === "" ? undefined : Number(input.value));
  } else if (kind === "string") {
    const isLong = /\n/.test(value ?? "") || (schema.maxLength ?? 0) > 200 || /text|body|content|query|code/i.test(name);
    input = isLong
      ? h("textarea", { ...common, rows: 3, maxlength: schema.maxLength, value: value ?? "" })
      : h("input", { ...common, type: FORMATS[schema.format] ?? "text", minlength: schema.minLength, maxlength: schema.maxLength, autocomplete: "off", value: value ?? "" });
    read = () => (input.value === "" && !required ? undefined : input.value);
  } else {
    input = h("textarea", { ...common, rows: 3, spellcheck: "false", value: value === undefined ? "" : JSON.stringify(value, null, 2) });
    read = () => {
      if (!input.value.trim()) return undefined;
      try { return JSON.parse(input.value); } catch { throw new Error(`${name} is not JSON`); }
    };
  }
  const label = h("label", { for: id }, schema.title ?? name, required && h("span", { class: "required" }, " (required)"));
  const help = words && h("small", { id: described }, words);
  return { name, read, node: h("div", { class: `field ${kind}` }, label, help, input) };
}

// A form for an object; `read()` returns the values, or throws if they are not valid.
export function formFor(schema, known = {}) {
  const properties = Object.entries(schema?.properties ?? {}).slice(0, 200);
  const required = new Set(schema?.required ?? []);
  const fields = properties.map(([name, one]) => field(name, one ?? {}, required.has(name), known?.[name]));
  const extra = Object.keys(known ?? {}).some((name) => !schema?.properties?.[name]);
  const text = h("textarea", { rows: 10, spellcheck: "false", "aria-label": "Arguments as JSON", class: "code" });
  const plain = h("div", { class: "fields" }, fields.length ? fields.map((one) => one.node) : h("p", { class: "empty" }, "It takes no arguments."));
  const raw = h("div", { class: "fields", hidden: true }, text);
  const readFields = () => Object.fromEntries(fields.map((one) => [one.name, one.read()]).filter(([, value]) => value !== undefined));
  const readText = () => {
    let value;
    try { value = JSON.parse(text.value || "{}"); } catch (error) { throw new Error(`the arguments are not JSON: ${clean(error.message)}`); }
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("the arguments have to be an object");
    return value;
  };
  const toggle = h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => flip(raw.hidden) }, "Edit as JSON");
  function flip(asText) {
    try {
      if (asText) text.value = JSON.stringify(extra ? { ...known, ...readFields() } : readFields(), null, 2);
    } catch { text.value = "{}"; }
    raw.hidden = !asText;
    plain.hidden = asText;
    for (const one of plain.querySelectorAll("input, select, textarea")) one.disabled = asText;
    toggle.setAttribute("aria-pressed", String(asText));
  }
  if (extra || (!schema?.properties && schema?.additionalProperties !== false && Object.keys(schema ?? {}).length > 1)) flip(true);
  return { node: h("div", { class: "arguments" }, plain, raw), toggle, read: () => (raw.hidden ? readFields() : readText()) };
}
