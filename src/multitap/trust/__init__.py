"""What may run, and who may see what: the vault, the pins and the scanner.

In: names and values that a person types, the questions of a server's configuration (`${auth:NAME}`)
and the definitions of its tools. Out: the values, to the servers and origins that may have them and
to nobody else; which tools are not as they were (`pins`), and which look like attacks (`scanner`).
It knows the models of the configuration, and must not know links, hubs or gateways.
"""
