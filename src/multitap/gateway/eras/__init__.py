"""The bridge between the era of handshakes and the stateless one.

In: results, questions and changes in the words of one era. Out: the same in those of the other.
`translation` rewrites results, `parked_calls` keeps calls that wait until their client answers a
question, `server_requests` brings questions of servers to the client they concern, `subscriptions`
tells clients of changes, `log_levels` tells servers what clients want to see of their logs,
`stateless_admission` lets requests in that agree with their own headers. It must not know how
messages travel.
"""
