// A real OpenID provider with three people in two groups, on loopback.
// Run as: node provider.mjs PORT RESOURCE [opaque]
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const [port, resource, format] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = { alice: ["dev"], bob: ["ops"], carol: ["dev", "ops"] };

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "desk", token_endpoint_auth_method: "none", application_type: "native",
      redirect_uris: ["http://127.0.0.1/callback"], grant_types: ["authorization_code", "refresh_token"],
    },
    { client_id: "robot", client_secret: "robots-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
    {
      client_id: "gateway", client_secret: "gateways-secret", grant_types: ["authorization_code"],
      redirect_uris: [resource.replace(/\/mcp$/, "/accounts/signed-in")],
    },
  ],
  scopes: ["openid", "offline_access", "tools", "write"],
  features: {
    devInteractions: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    revocation: { enabled: true },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, indicator) => ({
        scope: "tools write", audience: indicator, accessTokenFormat: format === "opaque" ? "opaque" : "jwt",
        jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
  extraTokenClaims: (_, token) => ({ groups: groups[token.accountId] ?? [] }),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  ttl: { AccessToken: 600, Grant: 3600, Interaction: 600, Session: 3600, IdToken: 600, ClientCredentials: 600 },
});

const server = provider.listen(Number(port), "127.0.0.1", () => console.log(`ready ${issuer}`));
// ends with whoever started it
createInterface({ input: process.stdin }).on("close", () => { server.close(); process.exit(0); });
