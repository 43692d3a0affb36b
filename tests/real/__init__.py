"""Servers that other people wrote, started the way people start them."""
