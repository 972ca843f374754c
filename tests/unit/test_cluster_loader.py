"""Profiles: where they are looked for, what their paths become, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_toolkit.cluster import Cluster, Container, Slurm, Tool
from recipe_toolkit.cluster_loader import find_cluster, load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.errors import InputError

GOOD = """\
schema: 1
name: site
scheduler: slurm
runs: ~/runs
python: $TOOLS/bin/python
pythonpath: [lib, /abs/lib]
models: {tiny: models/tiny, big: "hf:org/big@main"}
tools: {vllm: {venv: "${TOOLS}/vllm"}, aiperf: {path: bin/aiperf}}
container: {runtime: docker, mounts: ["~/cache:/cache", "/data:/data:ro"], args: [--init]}
env: {UCX_NET_DEVICES: mlx5_0:1, NCCL_SOCKET_IFNAME: ib0}
secrets: [HF_TOKEN]
interface: ib0
max_nodes: 4
slurm: {partition: gpu, gpus: gpus-per-node, max_time: 2-00, signal_lead: 90.5, directives: {mem: 0, requeue: true},
        setup: [module load cuda], srun_args: [--mpi=none]}
metrics_targets: targets
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("TOOLS", "/tools")
    monkeypatch.delenv("RECIPE_CLUSTER", raising=False)
    monkeypatch.delenv("RECIPE_CLUSTERS", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def profile(folder: Path, text: str = GOOD, name: str = "site") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def said(folder: Path, *changes: tuple[str, str]) -> list[str]:
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    try:
        found = load_cluster(str(profile(folder, text))).warnings
    except InputError as error:
        found = error.problems
    return [item.render().replace(f"{folder}/", "") for item in found]


def test_a_good_profile(tmp_path: Path) -> None:
    loaded = load_cluster(str(profile(tmp_path)))
    assert loaded.warnings == ()
    assert loaded.cluster == Cluster(
        name="site",
        scheduler="slurm",
        runs="/home/me/runs",
        python="/tools/bin/python",
        pythonpath=(f"{tmp_path}/lib", "/abs/lib"),
        models={"tiny": f"{tmp_path}/models/tiny", "big": "hf:org/big@main"},
        tools={"vllm": Tool(venv="/tools/vllm"), "aiperf": Tool(path=f"{tmp_path}/bin/aiperf")},
        container=Container("docker", ("/home/me/cache:/cache", "/data:/data:ro"), ("--init",)),
        env={"UCX_NET_DEVICES": "mlx5_0:1", "NCCL_SOCKET_IFNAME": "ib0"},
        secrets=("HF_TOKEN",),
        interface="ib0",
        metrics_targets=f"{tmp_path}/targets",
        max_nodes=4,
        slurm=Slurm(
            partition="gpu",
            gpus="gpus-per-node",
            max_time_s=172800,
            signal_lead_s=91,
            directives={"mem": 0, "requeue": True},
            setup=("module load cuda",),
            srun_args=("--mpi=none",),
        ),
    )


def test_what_it_resolves_to_means_the_same_from_anywhere(tmp_path: Path) -> None:
    loaded = load_cluster(str(profile(tmp_path)))
    again = load_cluster(str(profile(tmp_path / "elsewhere", dump_yaml(loaded.data))))
    assert again.cluster == loaded.cluster
    assert again.data == loaded.data


def test_the_embedded_profile(tmp_path: Path) -> None:
    loaded = load_cluster("local")
    assert loaded.cluster == Cluster("local", "local", f"{tmp_path}/cwd/runs")
    assert load_cluster(str(profile(tmp_path, dump_yaml(loaded.data)))).cluster == loaded.cluster


def test_sets(tmp_path: Path) -> None:
    loaded = load_cluster(str(profile(tmp_path)), ["slurm.partition=debug", "max_nodes=2", "tools.vllm={path: v}"])
    assert loaded.cluster.slurm.partition == "debug"
    assert loaded.cluster.max_nodes == 2
    assert loaded.cluster.tools["vllm"] == Tool(path=f"{tmp_path}/v")
    with pytest.raises(InputError) as caught:
        load_cluster("local", ["slrum.partition=x"])
    assert caught.value.render() == "--set slrum.partition=x: slrum: unknown key\n  hint: did you mean `slurm`?"


def test_where_a_name_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    embedded = find_cluster("local")
    home = profile(tmp_path / "home/.config/recipe-toolkit/clusters", name="local")
    assert find_cluster("local") == home != embedded
    profile(tmp_path / "cwd/recipes/clusters", name="local")
    assert find_cluster("local") == Path("recipes/clusters/local.yaml")
    first = profile(tmp_path / "first", name="other")
    second = profile(tmp_path / "second", name="local")
    monkeypatch.setenv("RECIPE_CLUSTERS", f"{first.parent}::{second.parent}")
    assert find_cluster("local") == second
    assert find_cluster("other") == first
    assert find_cluster("./local") == Path("local")
    assert find_cluster("local.yaml") == Path("local.yaml")


def test_no_name_means_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        find_cluster(None)
    assert caught.value.render() == (
        "--cluster: no cluster profile is named\n"
        "  hint: --cluster NAME, --cluster local for this machine alone, or the variable RECIPE_CLUSTER"
    )
    monkeypatch.setenv("RECIPE_CLUSTER", "local")
    assert load_cluster(None).cluster.name == "local"


def test_a_name_that_is_not_found() -> None:
    with pytest.raises(InputError) as caught:
        find_cluster("locl")
    assert caught.value.render() == (
        "--cluster: no profile 'locl' in recipes/clusters, /home/me/.config/recipe-toolkit/clusters, or in the "
        "package\n"
        "  hint: did you mean `local`? Or give its path, as in ./locl.yaml"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("partition:", "partion:", "site.yaml:14:9: slurm.partion: unknown key\n  hint: did you mean `partition`?"),
        ("max_nodes: 4", "max_node: 4", "site.yaml:13:1: max_node: unknown key\n  hint: did you mean `max_nodes`?"),
        ("max_nodes: 4", "partition: x", "site.yaml:13:1: partition: unknown key\n"
         "  hint: `partition` belongs in slurm"),
        ("scheduler: slurm", "scheduler: pbs", "site.yaml:3:12: scheduler: 'pbs' is not one of slurm, ssh, local"),
        ("scheduler: slurm", "scheduler: ssh", "site.yaml:1:1: ssh: missing: the scheduler is ssh, and no hosts are "
         "named\n  hint: ssh: {hosts: [a, b]}"),
        ("max_nodes: 4", "ssh: {hosts: [a]}", "site.yaml:13:1: warning: ssh: is not used: the scheduler is slurm\n"
         "  hint: scheduler: ssh"),
        ("runs: ~/runs\n", "", "site.yaml:1:1: runs: missing\n"
         "  hint: folder of the run folders, on a file system that all nodes share"),
        ("$TOOLS/bin", "$NOPE/bin", "site.yaml:5:9: python: $NOPE is not set in the environment\n"
         "  hint: write the path out"),
        ("~/runs", "~nobody-here/runs", "site.yaml:4:7: runs: no such user: ~nobody-here\n  hint: write the path out"),
        ("~/cache:/cache", "cache:/cache", "site.yaml:9:39: container.mounts.0: 'cache' is not an absolute path\n"
         "  hint: HOST:CONTAINER, both absolute"),
        ("~/cache:/cache", "/cache", "site.yaml:9:39: container.mounts.0: '/cache' is not a mount "
         "(HOST:CONTAINER or HOST:CONTAINER:ro)"),
        ("{path: bin/aiperf}", "{path: a, venv: b}", "site.yaml:8:48: tools.aiperf: has 2 keys, at most 1\n"
         "  hint: where a program runs: one of `venv`, `path` and `image`"),
        ("{path: bin/aiperf}", "{}", "site.yaml:8:48: tools.aiperf: is empty\n"
         "  hint: where a program runs: one of `venv`, `path` and `image`"),
        ("runtime: docker", "runtime: none", None),
        ("hf:org/big@main", "hf:big", "site.yaml:7:34: models.big: 'hf:big' is not of the form hf:ORG/REPO[@REVISION]\n"
         "  hint: an absolute path, or hf:ORG/REPO[@REVISION]"),
        ("UCX_NET_DEVICES", "VLLM_HOST_IP", "site.yaml:10:7: env.VLLM_HOST_IP: cannot be set: each process is given "
         "its own node's address\n  hint: leave it out"),
        ("UCX_NET_DEVICES: mlx5_0:1", "MY_TOKEN: abc", "site.yaml:10:17: env.MY_TOKEN: looks like a secret, and files "
         "are copied into every run folder\n  hint: remove it here; `secrets: [MY_TOKEN]` in this profile, beside env, "
         "takes it from the shell that submits"),
        ("[HF_TOKEN]", "[NCCL_SOCKET_IFNAME]", "site.yaml:10:34: env.NCCL_SOCKET_IFNAME: stands in env and in secrets\n"
         "  hint: keep it in secrets alone"),
        ("[HF_TOKEN]", "[HF-TOKEN]", "site.yaml:11:11: secrets.0: 'HF-TOKEN' is not the name of an environment "
         "variable (letters, digits and '_', no digit first)"),
        ("mem: 0", "time: 10", "site.yaml:14:94: slurm.directives.time: is set by time_limit of the recipe\n"
         "  hint: leave it out here"),
        ("mem: 0", "export: NONE", "site.yaml:14:102: slurm.directives.export: NONE hands no HF_TOKEN on, and programs "
         "would not find the secrets\n  hint: leave it out: Slurm's default is ALL"),
        ("mem: 0", "export: 'HOME, HF_TOKEN'", None),
        ("mem: 0", "export: 'ALL,X=1'", None),
        ("--mpi=none", "--export=NIL", "site.yaml:15:48: slurm.srun_args.0: NIL hands no HF_TOKEN on, and programs "
         "would not find the secrets\n  hint: leave it out: Slurm's default is ALL"),
        ("mem: 0", "partition: x", "site.yaml:14:94: slurm.directives.partition: is set by slurm.partition\n"
         "  hint: leave it out here"),
        ("mem: 0", 'comment: "a\\nb"', "site.yaml:14:103: slurm.directives.comment: 'a\\nb' is not one line of text, "
         "an integer or true"),
        ("2-00", "12:00", "site.yaml:14:56: warning: slurm.max_time: 12:00 is 12 minutes and 0 seconds\n"
         "  hint: for hours, write 12:00:00"),
        ("scheduler: slurm", "scheduler: local", "site.yaml:14:1: warning: slurm: is not used: the scheduler is local\n"
         "  hint: scheduler: slurm"),
        ("interface: ib0", "interface: 'ib 0'", "site.yaml:12:12: interface: 'ib 0' is not the name of a network "
         "interface"),
        ("name: site", "name: site\nname: x", "site.yaml:3:1: key `name` stands twice; first in line 2"),
    ],
)  # fmt: skip
def test_profiles_that_are_refused_or_warned_of(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    assert said(tmp_path, (old, new)) == ([message] if message else [])


def test_an_image_needs_a_runtime(tmp_path: Path) -> None:
    changes = (("runtime: docker", "runtime: none"), ("{path: bin/aiperf}", "{image: a}"))
    assert said(tmp_path, *changes) == [
        "site.yaml:8:56: tools.aiperf.image: an image, and no container.runtime to run it\n"
        "  hint: docker, podman, enroot, apptainer or pyxis"
    ]


CONTAINER = 'container: {runtime: docker, mounts: ["~/cache:/cache", "/data:/data:ro"], args: [--init]}'


def test_where_images_are(tmp_path: Path) -> None:
    text = GOOD.replace(CONTAINER, """
container:
  runtime: apptainer
  cache: images
  images: {a: ~/a.sif, b: ./b.sif, c: $TOOLS/c.sif, d: "mirror:5000/d@sha256:0"}
  global_args: [--debug]
""")  # fmt: skip
    loaded = load_cluster(str(profile(tmp_path, text)))
    container = loaded.cluster.container
    assert container.cache == f"{tmp_path}/images"
    images = {"a": "/home/me/a.sif", "b": f"{tmp_path}/b.sif", "c": "/tools/c.sif", "d": "mirror:5000/d@sha256:0"}
    assert container.images == images
    assert load_cluster(str(profile(tmp_path / "elsewhere", dump_yaml(loaded.data)))).cluster == loaded.cluster


@pytest.mark.parametrize(
    ("container", "messages"),
    [
        ("{runtime: pyxis}", []),
        ("{runtime: enroot, global_args: [-x]}", ["container.global_args: enroot takes none\n  hint: args"]),
        ("{runtime: enroot, mounts: ['/a b:/c']}", ["container.mounts.0: '/a b/c' holds a space, and enroot cannot "
         "mount that\n  hint: another name, or a link to it"]),
        ("{runtime: apptainer, mounts: ['/a,b:/c']}", ["container.mounts.0: '/a,b/c' holds a comma, and apptainer "
         "cannot mount that\n  hint: another name, or a link to it"]),
        ("{runtime: lxc}", ["container.runtime: 'lxc' is not one of none, docker, podman, enroot, apptainer, pyxis"]),
    ],
)  # fmt: skip
def test_what_runtimes_cannot_do(tmp_path: Path, container: str, messages: list[str]) -> None:
    found = said(tmp_path, (CONTAINER, f"container: {container}"))
    assert [item.split(": ", 1)[1] for item in found] == messages


def test_paths_that_no_container_could_see(tmp_path: Path) -> None:
    found = said(tmp_path, ("~/runs", "~/my:runs"), ("models/tiny", "models/ti:ny"))
    assert "runs: '/home/me/my:runs' holds a colon, and docker cannot mount that" in found[0]
    assert [item.split(": ")[1] for item in found] == ["runs", "models.tiny"]


def test_pyxis_needs_slurm(tmp_path: Path) -> None:
    found = said(tmp_path, ("scheduler: slurm", "scheduler: local"), ("runtime: docker", "runtime: pyxis"))
    assert (
        "site.yaml:9:22: container.runtime: pyxis runs programs as steps of a Slurm job, and the scheduler is local\n"
        "  hint: enroot, which runs the same images" in found
    )


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    found = said(tmp_path, ("~/runs", "$NOPE"), ("scheduler: slurm", "scheduler: pbs"), ("mem: 0", "nodes: 3"))
    assert [item.split(": ")[1] for item in found] == ["scheduler", "runs", "slurm.directives.nodes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "site.yaml:1:1: is empty"), ("[]", "site.yaml:1:1: holds a list, not a mapping")],
)
def test_files_that_hold_no_profile(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(str(profile(tmp_path, text)))
    assert caught.value.render().replace(f"{tmp_path}/", "") == message


def test_a_local_profile_with_slurm_settings_keeps_them(tmp_path: Path) -> None:
    loaded = load_cluster(str(profile(tmp_path)), ["scheduler=local"])
    assert load_cluster(str(profile(tmp_path, dump_yaml(loaded.data)))).cluster == loaded.cluster
