// The client of the gateway: questions, calls, and the stream of events.

const HEADERS = { "content-type": "application/json", "x-multitap-console": "1" };
let onLocked = () => {};

export class Refused extends Error {
  constructor(answer) {
    super(answer.error);
    this.hint = answer.hint ?? "";
  }
}

export function whenLocked(act) { onLocked = act; }

async function post(path, body, signal) {
  let response;
  try {
    response = await fetch(`/console/api/${path}`, { method: "POST", headers: HEADERS, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ error: "the gateway does not answer" });
  }
  if (response.status === 401) {
    onLocked();
    throw new Refused({ error: "the console is locked" });
  }
  return response;
}

export async function ask(method, values = {}) {
  return (await checked(await post(method, values))).json();
}

// A response with a status of success; a server that is too busy answers without JSON.
async function checked(response) {
  if (response.ok) return response;
  throw new Refused(await response.json().catch(() => ({ error: `the gateway answers ${response.status}` })));
}

export const leave = () => post("leave", {});

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const kind = lines.find((one) => one.startsWith("event: "))?.slice(7);
      const data = lines.find((one) => one.startsWith("data: "))?.slice(6);
      if (kind && data) yield { kind, data: JSON.parse(data) };
    }
  }
}

// Run an action at the gateway; `onQuestion` answers servers' questions, `onStep` gets progress.
export async function act(method, values, { onQuestion, onStep, signal } = {}) {
  const response = await checked(await post(method, values, signal));
  let action = "";
  for await (const { kind, data } of events(response)) {
    if (kind === "begun") action = data;
    else if (kind === "answer") return data;
    else if (kind === "failure") throw new Refused(data);
    else if (kind === "progress") onStep?.(data);
    else if (kind === "question") {
      Promise.resolve(onQuestion(data)).then((reply) => post("answer", { action, number: data.number, ...reply })).catch(() => {});
    }
  }
  throw new Refused({ error: "the gateway has gone" });
}

// Follow events while the page is visible: a hidden page costs nothing.
export function follow(onFrame, onState) {
  let source = null;
  let again = 0;
  const close = () => { source?.close(); source = null; clearTimeout(again); };
  const open = () => {
    close();
    if (document.hidden) return;
    source = new EventSource("/console/events");
    source.addEventListener("frame", (event) => { onState("live"); onFrame(JSON.parse(event.data)); });
    source.onerror = () => {
      close();
      onState("lost");
      // tells whether the gateway has stopped or the key is no longer valid
      ask("about").catch(() => {});
      again = setTimeout(open, 1000);
    };
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
  return close;
}
