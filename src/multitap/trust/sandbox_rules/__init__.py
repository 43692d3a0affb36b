"""What a confined server may use: makes a plan from its rules, and rules from observed use.

In: a server's configuration, its program, observed use. Out: paths, hosts and variables. It must
not know how the kernel enforces them.
"""
