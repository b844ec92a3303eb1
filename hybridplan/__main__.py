"""``python -m hybridplan``."""

from hybridplan.cli import main

main()
