"""Commands about servers: their state, logs and problems.

In: the configured servers, their snapshots and their logs. Out: one line for each, or a report that
says what to do. It must not judge a failure: messages and hints come with the `Failure`.
"""
