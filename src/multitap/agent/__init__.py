"""The world an agent lives in, and the loop that uses it."""
