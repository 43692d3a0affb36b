// The result of a tool: texts, pictures, sounds, links.

import { h, link, readable } from "./dom.js";
import { code } from "./dialogs.js";
import { textView } from "./markdown.js";

// pixel formats only: an SVG may contain scripts and links
const PICTURES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;
const SOUNDS = /^audio\/(wav|x-wav|wave|mpeg|mp3|ogg|webm|mp4|aac|flac)$/;
const BASE64 = /^[A-Za-z0-9+/\s]*={0,2}\s*$/;

function media(kind, type, data) {
  const known = String(type ?? "").toLowerCase().split(";")[0].trim();
  if (typeof data !== "string" || !BASE64.test(data)) return h("p", { class: "note" }, `${kind} that cannot be read`);
  const size = `${Math.round((data.length * 3) / 4 / 1024).toLocaleString("en")} KB`;
  const source = `data:${known};base64,${data.replace(/\s/g, "")}`;
  if (PICTURES.test(known)) {
    const picture = h("img", { src: source, alt: `${known}, ${size}` });
    const words = h("figcaption", {}, `${known}, ${size}`);
    picture.addEventListener("load", () => { words.textContent = `${known}, ${picture.naturalWidth} × ${picture.naturalHeight}, ${size}`; });
    picture.addEventListener("error", () => { words.textContent = `${known} that cannot be shown, ${size}`; picture.remove(); });
    return h("figure", { class: "picture" }, picture, words);
  }
  if (SOUNDS.test(known)) return h("figure", {}, h("audio", { controls: true, src: source }), h("figcaption", {}, `${known}, ${size}`));
  return h("p", { class: "note" }, `${known || kind}, ${size}: this type is not shown`);
}

function block(one) {
  switch (one?.type) {
    case "text": return textView(String(one.text ?? ""));
    case "image": case "audio": return media(one.type, one.mimeType, one.data);
    case "resource_link": return h("p", {}, h("strong", {}, one.title ?? one.name ?? "resource"), " ", link(one.uri), " ", one.mimeType);
    case "resource": {
      const inside = one.resource ?? {};
      const name = h("p", {}, h("code", {}, inside.uri), " ", inside.mimeType);
      return h("div", {}, name, typeof inside.text === "string" ? textView(inside.text) : media("data", inside.mimeType, inside.blob));
    }
    default: return code(JSON.stringify(one, null, 2));
  }
}

export function resultView(result) {
  const blocks = Array.isArray(result?.content) ? result.content.slice(0, 200) : [];
  const structured = result?.structuredContent;
  const raw = h("details", {}, h("summary", {}, "Raw answer"));
  // a long answer is formatted only when it is opened
  raw.addEventListener("toggle", () => { if (raw.children.length === 1) raw.append(code(readable(JSON.stringify(result)).slice(0, 500000))); });
  return h("div", { class: "result" },
    result?.isError && h("p", { class: "note error", role: "alert" }, "The tool reported a failure."),
    blocks.map(block),
    !blocks.length && h("p", { class: "empty" }, "It answered without content."),
    structured !== undefined && h("details", {}, h("summary", {}, "Structured content"), code(readable(JSON.stringify(structured)))),
    raw);
}
