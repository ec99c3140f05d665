"""Compare two draft files section by section."""
