"""What an agent holds: its tools in one registry, wherever they run."""
