"""Rows become a draft file: in the decoding process, or in one of its own."""
