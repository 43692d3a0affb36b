"""Logging in to a server: found out, registered, granted, renewed and kept.

In: the challenge of a server that refuses a request, what the configuration says about logging in,
and a person where one is needed. Out: the headers that authorize requests, and logins in the token
store. It must not know links or hubs. Everything that the server or an authorization server says
is a stranger's word: addresses go through `address_rules`, bodies through `guarded_fetch`.

`account` is what a wire holds. It uses `discovery` (who grants), `client_identity` (who we are),
one of the grants (`authorization_code`, `workload_identity`, client credentials) at the
`token_endpoint`, with proofs of possession (`proof_key`) where these are wanted.
`loopback_callback` and `browser` are for the person.
"""
