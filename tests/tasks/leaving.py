"""A task of a user whose trials leave processes: a program, a daemon, and a fork of the worker."""

import os
import subprocess
import sys
import time
from pathlib import Path

from toy import Toy

SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]
DAEMON = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


class Leaving(Toy):
    def build(self):
        super().build()
        program = subprocess.Popen(SLEEPS, start_new_session=True).pid
        daemon = subprocess.check_output([sys.executable, "-c", DAEMON, *SLEEPS], text=True)
        fork = os.fork()
        if not fork:
            os.setsid()
            time.sleep(1000)
            os._exit(0)
        with Path(self.config.marker).open("a") as file:
            file.write(f"{program}\n{daemon.strip()}\n{fork}\n")
