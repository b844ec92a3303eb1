"""Predictions held against one's own device: checks of bytes, of mathematics and of time.

``result`` and ``calibration`` are light; torch is loaded by ``runner.run`` and below.
"""
