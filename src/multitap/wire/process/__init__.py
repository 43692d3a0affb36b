"""A server as a child process: started, spoken to over its pipes, and ended for certain.

In: a command with its environment. Out: a wire, the last lines of its standard error, what it
costs. `spawner` is where processes are started: it orders them from `warden`, a process of its own
that outlives us for long enough to end them, and therefore imports nothing of ours. It must not
know what the messages mean, nor whether to start a server again.
"""
