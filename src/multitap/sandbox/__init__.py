"""What a confined server may use: its level, its plan, and rules from observed use.

In: a server's configuration, its program, observed use. Out: levels, paths, hosts and variables. It
must not know how the kernel enforces them.
"""
