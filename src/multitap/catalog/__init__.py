"""What there is: one frozen picture of all offers, and the names that callers use.

In: what the links list, and the names that were given before. Out: a `Catalog`. `multitap.names`
makes the name of a tool; `name_books` remembers who has which. It must not know who calls, nor talk
to a server.
"""
