"""Clients that mean harm, and what they are let loose on."""
