"""Rounds that run on the device: a chain of them is queued, and the host reads the one before."""
