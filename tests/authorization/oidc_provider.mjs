// A real provider: everybody may sign in under any name, as a member of `dev`.
// Arguments: the port, the secret of the gateway's client, and its redirect URI.
import { Provider } from 'oidc-provider';

const [port, secret, redirect] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{
    client_id: 'multitap-at-org',
    client_secret: secret,
    redirect_uris: [redirect],
    grant_types: ['authorization_code', 'refresh_token'],
    token_endpoint_auth_method: 'client_secret_basic',
  }],
  cookies: { keys: ['only for tests'] },
  claims: { openid: ['sub'], profile: ['name', 'groups'] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: id, groups: ['dev'] }),
  }),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
