"""Runs scripts of models in processes of their own.

In: the text of a script, and answers to the calls that it makes. Out: those calls, its result, or
its state while it waits for a person. `source` reads a script as its author meant it, `worker` is
the process that runs it, `pool` owns these processes. It must not know tools, clients or servers,
and imports little: each process would have to import it as well.
"""
