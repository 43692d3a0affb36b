"""What may run, and who may see what: trusted projects, the vault, the pins and the scanner.

In: what a project proposes and what a person says to it; names and values that they type, the
questions of a server's configuration (`${auth:NAME}`) and the definitions of its tools. Out: which
parts of a project count; secrets, to the servers and origins that may have them and to nobody else;
which tools are not as they were (`pins`), and which look like attacks (`scanner`). It knows the
models of the configuration, and must not know links, hubs or gateways.
"""
