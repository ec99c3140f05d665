"""Acceptance as single engines have it, to the letter: one engine a file."""
