"""Which calls are allowed, asked about or denied: rules by name, by hint and by argument.

In: rules, a tool, its arguments. Out: a ruling with its reason. It must not know who asks the
person, nor how.
"""
