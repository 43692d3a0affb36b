"""What must not leak, at rest: secrets in the vault, and what logins were granted.

In: names and values that a person gives, tokens that authorization servers grant. Out: values, for
the servers and origins they are bound to. It must not know how a value is used.
"""
