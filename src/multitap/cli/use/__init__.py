"""Commands that show and use what the servers offer."""
