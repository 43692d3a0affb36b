"""A server as a child process: started, spoken to over its pipes, and reliably ended.

In: a command with its environment. Out: a wire, the last lines of its standard error, and its CPU
use. `spawner` is where processes are started: it orders them from `warden`, a separate process that
outlives us just long enough to end them, and therefore imports nothing of ours. It must not know
what the messages mean, or whether to restart a server.
"""
