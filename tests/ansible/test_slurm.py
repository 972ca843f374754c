"""The role ``slurm``: real daemons on four bare nodes from one inventory, changed under a running job."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ansible_rig import Nodes, Played, make_nodes

NAMES = ["melchior", "balthasar", "casper", "artaban"]
# The nodes have no cgroups; and slurmd looks for them unless it is told which.
OPTIONS = {
    "slurm_cluster": "magi",
    "slurm_accounting": "slurmdbd",
    "slurm_cgroup": {"CgroupPlugin": "cgroup/v1"},
    "slurm_settings": {"ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none"},
}


def play(nodes: Nodes, *words: str, **options: object) -> Played:
    settings = {**OPTIONS["slurm_settings"], **options.pop("settings", {})}
    return nodes.play(
        "playbooks/slurm.yml", "-e", json.dumps({**OPTIONS, "slurm_settings": settings, **options}), *words
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes with a GPU each, so to say, on which the role has been run."""
    for nodes in make_nodes(tmp_path_factory, "slurm", 4):
        for name in NAMES:
            nodes.on(name, "mknod -m 666 /dev/nvidia0 c 1 3")
        # The head calls itself otherwise than the inventory does: Slurm's daemons begin on a host of their name alone.
        nodes.on("melchior", "hostname head-1; echo 127.0.1.1 head-1 >> /etc/hosts")
        told = play(nodes, "--check", "--diff")
        assert told.code == 0, told.text
        assert all(told.changed.values())
        assert "+NodeName=casper NodeHostname=casper NodeAddr=10.91.0.3" in told.text
        for name in NAMES:
            assert nodes.on(name, "command -v slurmd munged || ls /etc/slurm || true").strip() == ""
        first = play(nodes)
        assert first.code == 0, first.text
        yield nodes


@pytest.mark.ansible
def test_jobs_run_on_every_node_with_the_gpus_of_the_inventory_and_one_key(cluster):
    hosts = cluster.on("balthasar", "srun -N4 --gres=gpu:gb10:1 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'")
    assert sorted(hosts.splitlines()) == sorted(f"{name} 0" for name in NAMES)
    assert set(cluster.on("casper", "sinfo -ho '%f %P'").split()) == {"gb10,rdma,lanes2", "gpu*"}
    keys = {cluster.on(name, "sha256sum /etc/munge/munge.key; stat -c '%a %U' /etc/munge/munge.key") for name in NAMES}
    assert len(keys) == 1
    assert keys.pop().split()[-2:] == ["400", "munge"]
    cluster.on(
        "artaban", "sbatch -Wo /dev/null --wrap true; until sacct -Xno State | grep -q COMPLETED; do sleep 0.2; done"
    )
    again = play(cluster)
    assert again.code == 0, again.text
    assert again.changed == dict.fromkeys(NAMES, 0)


@pytest.mark.ansible
def test_a_change_is_read_while_a_job_runs_and_what_needs_a_restart_waits(cluster):
    cluster.on("melchior", "sbatch --nodelist=casper --output=/dev/null --wrap 'sleep 600'")
    daemons = "cat /run/shim/slurmd.service.pid; pgrep -x sleep"
    ready = "for i in $(seq 100); do pgrep -x sleep >/dev/null && exit; sleep 0.1; done; exit 1"
    cluster.on("casper", ready)
    before = cluster.on("casper", daemons)
    # One node's file has been changed by hand, and another has lost its key.
    cluster.on("artaban", "echo SlurmctldDebug=debug >> /etc/slurm/slurm.conf")
    cluster.on("balthasar", "printf %0100d 7 > /etc/munge/munge.key")
    changed = play(cluster, settings={"KillWait": 77})
    assert changed.code == 0, changed.text
    assert "KillWait                = 77 sec" in cluster.on("balthasar", "scontrol show config")
    assert "HASH_VAL                = Match" in cluster.on("artaban", "scontrol show config")
    assert cluster.on("casper", daemons) == before
    refused = play(cluster, settings={"KillWait": 77}, slurm_hardware={"CPUs": 1})
    assert refused.code == 2
    assert "casper: slurm.conf: NodeName=artaban; slurm.conf: NodeName=balthasar;" in refused.words, refused.text
    assert "Slurm reads this only as it starts, and 1 jobs run" in refused.words
    assert "CPUs=2" in cluster.on("casper", "cat /etc/slurm/slurm.conf")
    assert cluster.on("casper", daemons) == before


@pytest.mark.ansible
def test_a_step_is_seen_without_slurmctld(cluster):
    cluster.on("melchior", "systemctl stop slurmctld")
    try:
        refused = cluster.play("playbooks/preflight.yml", "--limit", "casper")
    finally:
        cluster.on("melchior", "systemctl start slurmctld")
    assert refused.code == 2
    assert "casper is serving: Slurm's step " in refused.words, refused.text


@pytest.mark.ansible
def test_a_play_that_failed_before_the_daemons_started_anew_is_gone_on_with(cluster):
    cluster.on(
        "melchior", "until scancel --user=root; do sleep 0.5; done; while squeue -h | grep -q .; do sleep 0.2; done"
    )
    one = {"slurm_hardware": {"CPUs": 1, "Boards": 1, "SocketsPerBoard": 1, "CoresPerSocket": 1, "ThreadsPerCore": 1}}
    failed = play(cluster, slurm_timeout_s=4, slurm_dbd_settings={"DbdPort": 1}, **one)
    assert failed.code == 2, failed.text
    assert "Start slurmdbd" in failed.text
    assert "CPUs=1" in cluster.on("casper", "cat /etc/slurm/slurm.conf")
    assert "CPUTot=2" in cluster.on("casper", "scontrol show node casper")
    # And the key was put back, but munged runs with another.
    cluster.on(
        "artaban", "cp /etc/munge/munge.key /root/; printf %0100d 8 > /etc/munge/munge.key; systemctl restart munge"
    )
    cluster.on("artaban", "cat /root/munge.key > /etc/munge/munge.key; touch -d '+3 seconds' /etc/munge/munge.key")
    mended = play(cluster, **one)
    assert mended.code == 0, mended.text
    assert "CPUTot=1" in cluster.on("casper", "scontrol show node casper")
    assert cluster.on("melchior", "srun --nodelist=artaban hostname").strip() == "artaban"
    assert play(cluster, **one).changed == dict.fromkeys(NAMES, 0)
    back = play(cluster)
    assert back.code == 0, back.text


@pytest.mark.ansible
def test_what_cannot_be_is_told_before_anything_changes(cluster):
    cluster.on("melchior", "scancel --user=root; while squeue -h | grep -q .; do sleep 0.2; done")
    alone = {"slurm_nodes": ["melchior"]}
    version = play(cluster, "--limit", "melchior", slurm_version="99.1-1", **alone)
    assert version.code == 2
    assert "what the sources of apt name has no slurmd 99.1-1, but 22.05" in version.words, version.text
    parts = [{"name": "gpu", "nodes": ["caspar"]}]
    named = play(cluster, slurm_partitions=parts)
    assert named.code == 2
    assert "slurm_partitions are to name nodes out of melchior, balthasar" in named.words
    wrong = play(cluster, "--limit", "melchior", settings={"KilWait": 5}, **alone)
    assert wrong.code == 2
    assert "Parsing error at unrecognized key: KilWait" in wrong.words, wrong.text
    assert "KilWait" not in cluster.on("melchior", "cat /etc/slurm/slurm.conf")
    one = play(cluster, "--limit", "casper")
    assert one.code == 0
    assert one.changed == {"casper": 0}
    assert "the play leaves out melchior, balthasar, artaban" in one.words


CONF = (
    "# x\nKillWait=30\nSelectType=select/cons_tres\nNodeName=a CPUs=2\nNodeName=b CPUs=2\nPartitionName=gpu Nodes=ALL\n"
)


@pytest.mark.parametrize(
    ("file", "old", "new", "names", "restart"),
    [
        ("slurm.conf", CONF, CONF.replace("# x", "# y").replace("CPUs=2", "  CPUs=2"), [], []),
        ("slurm.conf", CONF, CONF.replace("=30", "=60"), ["KillWait"], []),
        ("slurm.conf", CONF, CONF.replace("Nodes=ALL", "Nodes=a"), ["PartitionName=gpu"], []),
        ("slurm.conf", CONF, CONF.replace("cons_tres", "linear"), ["SelectType"], ["SelectType"]),
        ("slurm.conf", CONF, CONF.replace("NodeName=b CPUs=2\n", ""), ["NodeName=b"], ["NodeName=b"]),
        ("cgroup.conf", "", "ConstrainCores=yes\n", ["ConstrainCores"], ["ConstrainCores"]),
    ],
)
def test_what_slurm_reads_only_as_it_starts_is_known(program, file, old, new, names, restart):
    assert program("slurm", "slurm").differs(file, old, new) == (names, restart)


@pytest.mark.parametrize(
    ("line", "problem", "note"),
    [
        ("a|idle|none", False, False),
        ("a|mixed-|none", False, False),
        ("a|idle*|Not responding", True, False),
        ("a|drained|gres/gpu count reported lower than configured (0 < 8)", True, False),
        ("a|drained|new memory modules", False, True),
        ("a|down|a person wrote this", True, False),
        ("b|idle|none", True, False),
    ],
)
def test_a_node_that_slurm_refuses_is_a_fault_and_one_that_a_person_drained_is_not(program, line, problem, note):
    problems, notes = program("slurm", "slurm").judge(line, ["a"])
    assert (bool(problems), bool(notes)) == (problem, note)
