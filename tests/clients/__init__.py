"""Clients that other people wrote, at our gateway."""
