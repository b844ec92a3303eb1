"""A plan as a user asks for it: memory, pool, costs, boot lines, warnings, and whether it fits."""
