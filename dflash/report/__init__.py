"""Figures and pages about draft files."""
