"""Servers that others have published, and how to add them.

In: a name from the bundled catalog, a `server.json`, an answer of a registry, an `.mcpb` bundle, or
a package name. Out: `ServerDraft`s, which say what would run and what the user has to supply first.
All input is foreign: it is bounded and checked. This package runs no server and writes no
configuration, and must not know how either is done.

`registry` finds servers, `server_json` reads how they are described, `packages` knows the launchers
of packages, and `bundles` unpacks.
"""
