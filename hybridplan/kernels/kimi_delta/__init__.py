"""Kimi delta attention: the delta rule with one decay for each channel of the key."""
