"""The ways into the gateway: HTTP, stdio and legacy SSE.

In: bytes of clients. Out: answers, notifications and questions as bytes. A front parses a message
once and makes a `ClientRequest`. It must not know what a request means: the gateway decides that.

- `http` with `sessions` and `streams`, `stdio`, and `sse`, which shares `Duplex` with stdio.
- Who comes in: `access` decides by the headers, `tokens` has our own tokens, `token_watch` ends
  revoked clients, `resource_server` admits tokens of identity providers.
- For people: `accounts` (its HTML in `account_pages`, its logins in `account_logins`), with
  `browser_sessions` and `provider_sign_in`. For programs: `pages` and `cards`.
"""
