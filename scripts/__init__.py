"""What developers run beside `make` targets of their own; nothing here is installed."""
