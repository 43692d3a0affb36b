"""Logins at servers: discovered, registered, granted, renewed and stored.

In: the challenge of a server that refuses a request, the OAuth settings, and a person where one is
needed. Out: the headers that authorize requests, and logins in the token store. It must not know
links or hubs. Nothing that the server or an authorization server says is trusted: addresses and
bodies go through `endpoints`.

`account` is what a wire holds, and `storage` where its logins are. A login is a `flow`: `discovery`
(who grants), `identity` (who we are) and `grants` (what we get tokens for); `callback` receives the
browser's redirect.
"""
