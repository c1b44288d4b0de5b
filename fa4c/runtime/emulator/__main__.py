"""python -m fa4c.runtime.emulator KERNEL.ptx --launch launch.json"""

import sys

from .launch_file import main

sys.exit(main())
