"""What may run, and who may see what: today the vault, which keeps secrets at rest.

In: names and values that a person types, and the questions of a server's configuration
(`${auth:NAME}`). Out: the values, to the servers and origins that may have them and to nobody
else. It knows the models of the configuration, and must not know links, hubs or gateways.
"""
