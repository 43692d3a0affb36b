// A client whose own timeout is shorter than its calls: `patient.mjs URL SECONDS TOOL…`.
// It waits on as long as it hears of progress, and prints what it got.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const TIMEOUT = 20000;
const [url, seconds, ...tools] = process.argv.slice(2);
const client = new Client({ name: "patient", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const answers = await Promise.all(tools.map(async (name) => {
  let steps = 0;
  const options = { timeout: TIMEOUT, resetTimeoutOnProgress: true, onprogress: () => { steps += 1; } };
  const result = await client.callTool({ name, arguments: { seconds: Number(seconds) } }, undefined, options);
  return { text: result.content[0].text, steps };
}));
await client.close();
console.log(JSON.stringify(answers));
