"""A Slurm cluster of a test's own: real daemons, with two nodes that are both this machine, in a folder of its own."""

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

from searchlight.trainables.ports import find_free_ports
from tests.end_to_end.processes import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun", "sinfo")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=30
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.2 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.3 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def find_program(name: str) -> str | None:
    """Return the path of a program of Slurm: daemons may be in a folder that is not on the path of a user."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


class Slurm:
    """The cluster. `env` is what its commands need. The user must be able to start all of PROGRAMS.

    Args:
        folder: For everything that the daemons write. Its path must be short, since sockets lie in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        names = {"folder": folder, "user": getpass.getuser(), "host": socket.gethostname().partition(".")[0]}
        (folder / "slurm.conf").write_text(CONFIG.format(ports=find_free_ports(3), **names))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o400)
        munge = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{option}={folder / file}" for option, file in {**munge, "seed-file": "munge.seed"}.items()]
        self._daemons = [self._start("munged", "--foreground", "--force", *options)]
        wait_until((folder / "munge.socket").exists, self._daemons[0], seconds=30)
        self._daemons.append(self._start("slurmctld", "-D"))
        self._daemons += [self._start("slurmd", "-D", "-N", node) for node in ("n1", "n2")]
        wait_until(lambda: self.call("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"], seconds=60)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen:
        with (self.folder / f"{name}.out").open("ab") as output:
            command = [str(find_program(name)), *arguments]
            return subprocess.Popen(command, env=os.environ | self.env, stdout=output, stderr=output)

    def call(self, *command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
        """Run a command of Slurm, and return what it prints, or "" if it fails: a daemon may not answer yet."""
        done = subprocess.run(
            [str(find_program(command[0])), *command[1:]],
            cwd=cwd,
            env=(env or dict(os.environ)) | self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def get_state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING or COMPLETED."""
        found = re.search(r"JobState=(\w+)", self.call("scontrol", "show", "job", job))
        return found[1] if found else ""

    def stop(self) -> None:
        """End all jobs, then the daemons, in the reverse order of their start."""
        self.call("scancel", "--user", getpass.getuser())
        wait_until(lambda: not self.call("squeue", "--noheader"), seconds=60)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(30)
