"""The bridge between the handshake era and the stateless era.

In: results, questions and changes of one era. Out: the same in the other. `translation` rewrites
results, `parked_calls` holds calls until their client answers a question, `server_requests` brings
servers' questions to the right client, `subscriptions` notifies clients of changes, `log_levels`
tells servers which log messages clients want, and `stateless_admission` checks that requests agree
with their own headers. It must not know how messages travel.
"""
