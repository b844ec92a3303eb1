"""``python -m hybridplan``."""

import os
import sys

# Python puts the working folder first here. In a model folder its files must not pass for modules.
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100
if sys.path and os.path.abspath(sys.path[0]) == os.getcwd() != _HOME:  # noqa: PTH100, PTH109
    del sys.path[0]

from hybridplan.cli import main  # noqa: E402

main()
