// A client of one era: `client.mjs ERA URL SERVER...` uses each server and prints what came of it.

const [era, url, ...servers] = process.argv.slice(2);
const info = { name: "typescript", version: "1" };
const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} };
const answers = {
  "elicitation/create": () => ({ action: "accept", content: { name: "Ada" } }),
  "sampling/createMessage": () => ({
    role: "assistant",
    model: "m",
    content: { type: "text", text: "said" },
  }),
  "roots/list": () => ({ roots: [{ uri: "file:///home/me" }] }),
};

async function oldClient() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const { StreamableHTTPClientTransport: Transport } = await import(
    "@modelcontextprotocol/sdk/client/streamableHttp.js"
  );
  const client = new Client(info, { capabilities });
  client.setRequestHandler(types.ElicitRequestSchema, answers["elicitation/create"]);
  client.setRequestHandler(types.CreateMessageRequestSchema, answers["sampling/createMessage"]);
  client.setRequestHandler(types.ListRootsRequestSchema, answers["roots/list"]);
  await client.connect(new Transport(new URL(url)));
  const watch = (uri) =>
    new Promise((resolve, reject) => {
      const heard = (told) => resolve(told.params.uri);
      client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, heard);
      client.subscribeResource({ uri }).then(() => touch(client, uri), reject);
    });
  return { client, call: (params, options) => client.callTool(params, undefined, options), watch };
}

async function newClient() {
  const { Client, StreamableHTTPClientTransport: Transport } = await import(
    "@modelcontextprotocol/client"
  );
  const versionNegotiation = { mode: { pin: "2026-07-28" } };
  const client = new Client(info, { capabilities, versionNegotiation });
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  await client.connect(new Transport(new URL(url)));
  const watch = (uri) =>
    new Promise((resolve, reject) => {
      client.setNotificationHandler("notifications/resources/updated", (told) =>
        resolve(told.params.uri),
      );
      client.listen({ resourceSubscriptions: [uri] }).then(() => touch(client, uri), reject);
    });
  return { client, call: (params, options) => client.callTool(params, options), watch };
}

function touch(client, uri) {
  return client.callTool({ name: `${uri.split(":")[0]}_touch`, arguments: {} });
}

async function use(server, { client, call, watch }) {
  const text = async (tool, args = {}, options = {}) => {
    const result = await call({ name: `${server}_${tool}`, arguments: args }, options);
    return result.content[0].text;
  };
  const progress = [];
  const report = {
    sum: (await call({ name: `${server}_add`, arguments: { a: 2, b: 3 } })).structuredContent,
    count: await text("count", {}, { onprogress: (told) => progress.push(told.progress) }),
    progress,
    ask: await text("ask"),
    sample: await text("sample"),
    roots: await text("roots"),
  };
  const watched = `${server}://watched`;
  if ((await client.listResources()).resources.some(({ uri }) => uri === watched)) {
    report.read = (await client.readResource({ uri: watched })).contents[0].text;
    report.updated = await watch(watched);
  }
  return report;
}

const connected = await (era === "old" ? oldClient() : newClient());
const tools = (await connected.client.listTools()).tools.map(({ name }) => name);
const reports = {};
for (const server of servers) reports[server] = await use(server, connected);
console.log(JSON.stringify({ tools, reports }));
await connected.client.close();
process.exit(0);
