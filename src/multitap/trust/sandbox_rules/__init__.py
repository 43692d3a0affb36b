"""What a confined server may use: from its rules to a plan, and from what it used to rules.

In: a server's configuration, its program, what it used. Out: paths, hosts and variables. It must
not know how the kernel enforces them.
"""
