"""A cluster profile: what a site adds to a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Slurm:
    """What the batch script asks for.

    ``gpus``: how GPUs are requested: ``gres`` (``--gres=gpu:N``), ``gpus-per-node`` or ``none``.
    ``gres_name``: e.g. ``gpu`` or ``gpu:h200``. ``segment``: nodes of one topology block (``--segment``).
    ``signal_lead_s``: how long before the time limit the job is warned. ``directives``: further
    ``#SBATCH --KEY=VALUE``. ``setup``: lines of shell before the step, as the site needs them.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclusive: bool = True
    gpus: str = "gres"
    gres_name: str = "gpu"
    segment: int | None = None
    max_time_s: int | None = None
    signal_lead_s: int = 120
    directives: Mapping[str, str | int | bool] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """Hosts without a scheduler, as ssh takes them. ``config``: ssh's own file (None: the user's)."""

    hosts: tuple[str, ...] = ()
    config: str | None = None


@dataclass(frozen=True)
class Tool:
    """Where a program runs: ``venv`` (a virtual environment), ``path`` (the program), or ``image``."""

    venv: str | None = None
    path: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class Container:
    """How images are run. ``mounts``: ``HOST:CONTAINER[:ro]``.

    ``runtime``: ``none``, ``docker``, ``podman``, ``enroot``, ``apptainer`` or ``pyxis``. ``args``: of the
    runtime's command that starts a program; ``global_args``: before that command. ``images``: what the
    runtime is given in place of an image that a recipe names (a file, or another reference). ``cache``:
    folder of the files that images are fetched into.
    """

    runtime: str = "none"
    mounts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    global_args: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    cache: str | None = None


@dataclass(frozen=True)
class Check:
    """What `recipe check` and the check inside jobs hold the nodes to.

    ``bind``: whether jobs are checked before engines start. ``hosts``: the nodes, as ssh takes them. ``lanes``:
    interface to network (``A.B.C.D/N``). ``mtu``: bytes, of each lane. ``speed``: Mb/s, of each lane. ``driver``: its
    version. ``ports``: that must be free. ``disk``: folder to bytes that must be free. ``ring``: there is no switch
    between the lanes. ``skip``: ids of checks that are left out.
    """

    bind: bool = True
    hosts: tuple[str, ...] = ()
    lanes: Mapping[str, str] = field(default_factory=dict)
    mtu: int = 9000
    speed: int | None = None
    driver: str | None = None
    ports: tuple[int, ...] = ()
    disk: Mapping[str, int] = field(default_factory=dict)
    ring: bool = False
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """A checked profile.

    ``runs``: root of the run folders, on the shared file system. ``python`` and ``pythonpath``: the
    nodes' interpreter (None: the submitting one) and where it finds this package. ``models``
    and ``data``: alias to path. ``interface``: the network interface whose address the nodes advertise (None: the host
    name's own, else the default route's). ``secrets``: names of variables that processes inherit and nothing
    ever writes. ``metrics_targets``: folder where runs tell Prometheus of themselves. ``max_nodes``: more are
    refused. ``lint``: by rule, why it does not hold at this site.
    """

    name: str
    scheduler: str
    runs: str
    python: str | None = None
    pythonpath: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    container: Container = Container()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    interface: str | None = None
    metrics_targets: str | None = None
    max_nodes: int | None = None
    slurm: Slurm = Slurm()
    ssh: Ssh = Ssh()
    check: Check = Check()
    lint: Mapping[str, str] = field(default_factory=dict)
