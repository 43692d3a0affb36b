"""Commands about servers: how each is doing, what it logs, what is wrong with it.

In: the configured servers, their snapshots and their logs. Out: one line for each, or a report with
what to do. It must not judge a failure by itself: the words and hints come with the `Failure`.
"""
