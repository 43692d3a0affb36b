"""One frozen picture of everything on offer, and the names that callers use.

In: what the links list, and the names that were given before. Out: a `Catalog`. `multitap.names`
makes tool names; `naming` remembers who has which. It must not know who calls, and never
talks to a server.
"""
