"""How fast it is, next to the SDK and to a client that does nothing but ask."""
