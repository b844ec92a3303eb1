"""What every kernel folder shares: input checks, chunk tables, launch helpers, gates."""
