"""People and programs that an identity provider vouches for.

In: the bearer token of a request, and `[access]`. Out: who asks, and what they may do. It must not
know HTTP requests, clients or tools, and must not let a token reach a log, a message or a server.

`verifier` decides about a token and remembers the decision; `issuer` checks it with the keys of
one provider, or by introspection; `access_tokens` has the checks of a token's claims, `proofs`
those of DPoP, and `rights` applies the rules. `people` stores who was here, and who may not come
back. `sign_in` sends a person to a provider, and `exchange` gets tokens for servers in exchange for
theirs.
"""
