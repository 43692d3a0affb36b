"""What must not leak, at rest: secrets in the vault, and what logins were granted."""
