"""Load, fingerprint and score target models."""
