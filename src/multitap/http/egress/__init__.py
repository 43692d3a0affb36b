"""The proxy through which confined programs reach the network.

In: host rules, one set per program, which authenticates with a password. Out: what went where, and
what was refused. It must not know what a program is for.
"""
