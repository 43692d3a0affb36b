"""Servers that others published, and how to add them.

In: a name of the bundled catalog, a `server.json`, an answer of a registry, an `.mcpb` bundle, the
name of a package. Out: `ServerDraft`s, which say what is to be run and what the user has to say
first. Whatever comes in is foreign: it is bounded and checked. Nothing here runs a server or writes
a configuration, and it must not know how either is done.
"""
