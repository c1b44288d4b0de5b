"""`python -m fa4c.cli`, for a checkout that is not installed."""

import sys

from .main import main

sys.exit(main())
