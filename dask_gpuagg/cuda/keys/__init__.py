"""Narrower representations of keys: words and dictionary codes."""
