"""Audit: does a recording's own evidence bear out what it says of p, q, noise, drafts and decisions?"""
