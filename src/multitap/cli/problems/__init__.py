"""Commands that find out what is wrong."""
