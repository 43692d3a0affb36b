"""What servers offered when a person relied on it: `multitap.lock`, and what differs now."""
