"""Commands that bring servers in, and Multitap into other clients."""
