// A client of `@modelcontextprotocol/ext-tasks`: `ext_tasks_client.mjs old|new URL SERVER…`.
// It calls the tools of each server, and prints what it got.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const [era, url, ...servers] = process.argv.slice(2);
const VERSION = "2026-07-28", META = "io.modelcontextprotocol/";
const info = { name: "ext-tasks", version: "1" };
const capabilities = { elicitation: { form: {} }, ...(era === "new" && { extensions: { [`${META}tasks`]: {} } }) };
const answer = (params) => ({ action: "accept", content: { [Object.keys(params.requestedSchema.properties)[0]]: "Ada" } });

const client = new Client(info, { capabilities: era === "new" ? capabilities : { ...capabilities, tasks: {} }, versionNegotiation: { mode: era === "new" ? { pin: VERSION } : "legacy" } });
client.setRequestHandler("elicitation/create", (request) => answer(request.params));
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

let number = 1000;
async function rawDispatch(request) {
  const body = { ...request, jsonrpc: "2.0", id: request.id ?? number++ };
  const name = body.params?.taskId ?? body.params?.name;
  const response = await fetch(url, { method: "POST", body: JSON.stringify(body), headers: {
    "content-type": "application/json", accept: "application/json, text/event-stream",
    "mcp-protocol-version": VERSION, "mcp-method": body.method, ...(name && { "mcp-name": name }) } });
  const text = await response.text();
  if (!response.headers.get("content-type").startsWith("text/event-stream")) return JSON.parse(text);
  const messages = text.split("\n").filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
  return messages.find((message) => message.id === body.id);
}

const framing = { protocolVersion: VERSION, clientInfo: info, clientCapabilities: capabilities };
const session = createTaskSessionFromClient(client, {
  endpointId: "gateway", ...(era === "new" && { rawDispatch, v2RequestFraming: framing }),
  onInputRequest: async (request) => answer(request.params),
});
const reports = {};
for (const server of servers) {
  const run = async (name, values) => {
    const execution = await session.callTool(`${server}_${name}`, values);
    const { outcome } = await execution.settle();
    return resultFromTaskOutcome(outcome).content[0].text;
  };
  reports[server] = { work: await run("work", { number: 7 }), ask: await run("ask", {}) };
}
await session.close();
await client.close();
console.log(JSON.stringify(reports));
