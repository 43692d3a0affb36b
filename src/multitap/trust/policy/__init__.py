"""Which calls are allowed, asked about or denied: rules by name, by hint and by argument."""
