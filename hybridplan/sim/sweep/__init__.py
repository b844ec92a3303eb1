"""Many configurations over traces: a grid, a store that survives a kill, workers anywhere."""
