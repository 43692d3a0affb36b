"""The life of one server: connect, list, watch, lose, restart.

In: a server's configuration and the requests for it. Out: results, offers, events, and failures
that a person can act on. One task owns one link. It must not know the names that callers use, or
any other server.

`link` is that life. It tries approaches (`connect`) in its turn (`start_queue`), agrees with the
server (`handshake`) on a `session`, fetches its `lists`, handles its `notifications` and watches
its `health`; if it fails, `diagnosis` says why and `backoff` when to try again. Callers go through
`requests`, which waits for its `availability`; `questions` has who answers what servers ask.
"""
