// An MCP server without any package: one JSON-RPC message a line, in and out.
import { createInterface } from "node:readline";
import { randomInt } from "node:crypto";

const SIDES = Number(process.env.SIDES ?? 6);

const roll = {
  name: "roll",
  description: `Roll dice with ${SIDES} sides.`,
  inputSchema: {
    type: "object",
    properties: { count: { type: "integer", minimum: 1, maximum: 100, default: 1 } },
  },
};

const methods = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: "dice", version: "1.0.0" },
  }),
  ping: () => ({}),
  "tools/list": () => ({ tools: [roll] }),
  "tools/call": ({ name, arguments: { count = 1 } = {} }) => {
    if (name !== roll.name) return failure(`no tool named ${name}`);
    if (!Number.isInteger(count) || count < 1 || count > 100) return failure("count is 1 to 100");
    const rolled = Array.from({ length: count }, () => randomInt(1, SIDES + 1));
    return { content: [{ type: "text", text: rolled.join(" ") }] };
  },
};

function failure(text) {
  return { content: [{ type: "text", text }], isError: true };
}

function send(message) {
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params = {} } = JSON.parse(line);
  if (id === undefined) continue; // a notification
  if (Object.hasOwn(methods, method)) send({ id, result: methods[method](params) });
  else send({ id, error: { code: -32601, message: `no method ${method}` } });
}
