"""One module per check of the contract; each offers ``run(context)`` and returns typed checks."""
