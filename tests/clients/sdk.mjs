// A client on the TypeScript SDK, release 1 or 2: does the steps it is given, prints what came of them.

import { createRequire } from "node:module";

const { home, release, negotiate, server, steps } = JSON.parse(process.argv[2]);
const load = createRequire(`${home}/`);
const parts =
  release === 1
    ? ["client/index.js", "client/stdio.js", "client/streamableHttp.js"].map((part) => `@modelcontextprotocol/sdk/${part}`)
    : ["@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio"];
const { Client, StdioClientTransport, StreamableHTTPClientTransport } = Object.assign({}, ...parts.map((part) => load(part)));

let latest = [];
let told = () => {};
const names = (tools) => tools.map((tool) => tool.name);
const changed = (error, tools) => {
  if (error) throw error;
  latest = names(tools);
  told();
};
const does = {
  list: async () => names((await client.listTools()).tools),
  call: async ([name, args]) => (await client.callTool({ name, arguments: args })).content[0].text,
  kill: async (name) => process.kill(Number(await does.call([name, {}])), "SIGKILL"),
  hear: async (gone) => {
    while (latest.length === 0 || latest.some((name) => name.startsWith(gone))) await new Promise((resolve) => (told = resolve));
    return latest;
  },
};

const client = new Client(
  { name: `typescript-${release}`, version: "1" },
  {
    ...(negotiate && { versionNegotiation: { mode: negotiate } }),
    listChanged: { tools: { onChanged: changed } },
  },
);
const { url, command } = server;
const transport = url
  ? new StreamableHTTPClientTransport(new URL(url))
  : new StdioClientTransport({ command: command[0], args: command.slice(1), stderr: "inherit" });
await client.connect(transport);
const came = [];
for (const [step, argument] of steps) came.push(await does[step](argument));
await transport.terminateSession?.();
await client.close();
console.log(JSON.stringify(came));
