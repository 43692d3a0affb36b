"""Logins at servers: discovered, registered, granted, renewed and stored.

In: the challenge of a server that refuses a request, the OAuth settings, and a person where one is
needed. Out: the headers that authorize requests, and logins in the token store. It must not know
links or hubs. Nothing that the server or an authorization server says is trusted: addresses go
through `address_rules`, bodies through `guarded_fetch`.

`account` is what a wire holds. It uses `discovery` (who grants), `client_identity` (who we are),
one of the grants (`authorization_code`, `workload_identity`, client credentials) at the
`token_endpoint`, and proofs of possession (`proof_key`) where they are required.
`loopback_callback` receives the browser's redirect.
"""
