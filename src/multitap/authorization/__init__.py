"""Clients sign people in with the URL of the gateway alone: our own authorization server.

In: OAuth requests of clients and browsers, and `[access.sign_in]`. Out: tokens of ours, which stand
for a person at the organisation's provider. `endpoints` answers HTTP; the protocol itself is the
SDK's, which asks `server`. `clients` has who may ask and where they may have people sent,
`consent` the page on which a person agrees, `grants` codes, tokens and their records, `id_jag` what
replaces a person's visit. It must not know MCP, and nothing imports it where it is not configured:
the SDK's handlers take half a second to import.
"""
