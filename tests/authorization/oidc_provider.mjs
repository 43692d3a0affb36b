// A real provider: everybody may sign in under any name, as a member of `dev`. It exchanges its own tokens.
// Arguments: the port, the secret of the gateway's client, and its redirect URIs.
import { Provider, errors } from 'oidc-provider';

const [port, secret, ...redirects] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const exchange = 'urn:ietf:params:oauth:grant-type:token-exchange';
const provider = new Provider(issuer, {
  clients: [{
    client_id: 'multitap-at-org',
    client_secret: secret,
    redirect_uris: redirects,
    grant_types: ['authorization_code', 'refresh_token', exchange],
    token_endpoint_auth_method: 'client_secret_basic',
  }],
  cookies: { keys: ['only for tests'] },
  claims: { openid: ['sub'], profile: ['name', 'groups'] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: id, groups: ['dev'] }),
  }),
});
provider.registerGrantType(exchange, async (ctx) => {
  const { subject_token: text, audience } = ctx.oidc.params;
  const token = await ctx.oidc.provider.AccessToken.find(text);
  if (!token || audience !== 'files') throw new errors.InvalidGrant('not a token of ours, or not for files');
  ctx.body = {
    access_token: `${audience}-of-${token.accountId}`,
    issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    token_type: 'Bearer',
    expires_in: 300,
  };
}, ['audience', 'subject_token', 'subject_token_type', 'requested_token_type', 'scope'], []);
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
