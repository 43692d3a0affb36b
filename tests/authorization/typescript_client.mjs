// A client on the TypeScript SDK that knows only a URL: signs in, calls a tool, renews its token, calls it again.
// Prints one JSON object a line; reads the address to which the browser was sent from its input.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [home, url] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = createRequire(`${home}/`)("@modelcontextprotocol/client");
const say = (message) => console.log(JSON.stringify(message));
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const kept = {};
const authProvider = {
  redirectUrl: "http://127.0.0.1:7777/callback",
  clientMetadata: { client_name: "TypeScript", redirect_uris: ["http://127.0.0.1:7777/callback"] },
  state: () => "a state of its own",
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: (page) => say({ page: String(page) }),
};

async function call() {
  const client = new Client({ name: "typescript", version: "1" }, { versionNegotiation: { mode: "auto" } });
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
  try {
    await client.connect(transport);
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    const { value } = await lines.next();
    await transport.finishAuth(new URL(value).searchParams);
    await client.close();
    return call();
  }
  const { content } = await client.callTool({ name: "calc_add", arguments: { a: 2, b: 3 } });
  await client.close();
  return content[0].text;
}

say({ answer: await call() });
const before = kept.tokens.refresh_token;
kept.tokens = { ...kept.tokens, access_token: "mta_gone" };
say({ answer: await call(), renewed: kept.tokens.refresh_token !== before });
process.exit(0);
