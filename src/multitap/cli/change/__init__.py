"""Commands that change the configured servers."""
