"""Length distributions, and how many requests of one run at once in given pools."""
