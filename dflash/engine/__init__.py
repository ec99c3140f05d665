"""The speculative loop and its recorder."""
