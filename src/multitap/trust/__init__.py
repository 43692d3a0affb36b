"""What may run, and who may see what.

In: what a project proposes and what a person answers; secrets, logins and tokens; what servers
say of themselves. Out: which parts of a project count (`projects`); secrets, only for the servers
and origins that may have them (`vault`, `stored_logins`); tools that are not as they were (`pins`)
or look like attacks (`scanner`); which calls are made (`policy`) and which questions are asked
(`questions`); the tokens of clients (`tokens`) and the record of it all (`audit`). It knows the
models of the configuration, and must not know links, hubs or gateways.
"""
