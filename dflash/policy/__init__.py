"""Acceptance rules, shapes, control and the noise that they share."""
