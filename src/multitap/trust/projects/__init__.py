"""Which projects a person has trusted: what each part would do, and whether it has changed."""
