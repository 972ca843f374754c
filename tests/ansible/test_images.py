"""The role ``images``: real podman and real docker on the nodes, a registry of tiny images; enroot is a stub."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ansible_rig import Nodes, Played
from image_rig import dockers, put_podman, registry, send, write_image

pytestmark = pytest.mark.ansible

PODMEN = ("melchior", "casper")
DOCKERS = ("balthasar", "artaban")
NAME = "10.91.0.254:5000/vllm"
LANES = "for i in enp1s0f1np1 enP2p1s0f1np1; do ip addr flush dev $i; ip link set $i mtu 9000 up; done"
ADDRESSES = "ip addr add 10.42.0.%d/24 dev enp1s0f1np1; ip addr add 10.42.1.%d/24 dev enP2p1s0f1np1"
STUB = Path(__file__).with_name("stubs") / "enroot"


class Site:
    """Nodes that reach a registry of two images."""

    def __init__(self, nodes: Nodes, one: str, two: str) -> None:
        self.nodes = nodes
        self.digests = [one.partition("@")[2], two.partition("@")[2]]
        self.one, self.two = (f"{NAME}:1@{digest}" for digest in self.digests)

    def play(self, on: tuple[str, ...], runtime: str, image: dict, *words: str, **more: object) -> Played:
        options = {"images_runtime": runtime, "images_list": [image], "images_margin_gb": 0, "images_size_gb": 0.01}
        given = json.dumps({**options, **more})
        return self.nodes.play("playbooks/images.yml", "-e", given, "--limit", ",".join(on), *words)

    def inspect(self, node: str, runtime: str, name: str) -> dict:
        return json.loads(self.nodes.on(node, f"{runtime} image inspect {name}"))[0]


@pytest.fixture(scope="module")
def site(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory):
    """Podman on two nodes, docker on the two others."""
    folder = tmp_path_factory.mktemp("registry")
    one, two = write_image(folder, "vllm", "one"), write_image(folder, "vllm", "two")
    for number, name in enumerate(("melchior", "balthasar", "casper", "artaban"), 1):
        nodes.on(name, f"{LANES}; {ADDRESSES % (number, number)}")
    put_podman(nodes, PODMEN)
    with registry(nodes, folder), dockers(nodes, DOCKERS):
        yield Site(nodes, one, two)


@pytest.mark.parametrize(("runtime", "pair"), [("podman", PODMEN), ("docker", DOCKERS)])
def test_every_node_pulls_by_digest_and_a_tag_that_names_another_image_is_mended(site, runtime, pair):
    node = pair[1]
    told = site.play(pair, runtime, {"reference": site.one}, "--check")
    assert told.code == 0, told.text
    assert all(told.changed.values())
    assert f"{node}: {site.one} is not there" in told.words
    assert site.nodes.on(node, f"{runtime} images -q") == ""
    first = site.play(pair, runtime, {"reference": site.one})
    assert first.code == 0, first.text
    again = site.play(pair, runtime, {"reference": site.one})
    assert again.changed == dict.fromkeys(pair, 0), again.text
    # The same tag, another digest.
    site.nodes.on(node, f"{runtime} pull -q {NAME}@{site.digests[1]}; {runtime} tag {NAME}@{site.digests[1]} {NAME}:1")
    assert site.digests[1] in site.inspect(node, runtime, f"{NAME}:1")["RepoDigests"][0]
    mended = site.play(pair, runtime, {"reference": site.one})
    assert mended.code == 0, mended.text
    assert f"{node}: {site.one} is {site.digests[1]}, not {site.digests[0]}" in mended.words
    assert mended.changed[pair[0]] == 0
    ids = {site.inspect(name, runtime, f"{NAME}:1")["Id"] for name in pair}
    assert len(ids) == 1


@pytest.mark.parametrize(("runtime", "pair"), [("podman", PODMEN), ("docker", DOCKERS)])
def test_one_node_pulls_and_hands_on_over_the_lanes_and_drift_is_seen_by_layers(site, runtime, pair):
    source, node = pair
    site.nodes.on(node, f"{runtime} images -q | sort -u | xargs -r {runtime} rmi -f >&2; rm -rf /var/lib/recipe-images")
    image = {"reference": site.one, "source": source}
    # What a run that was killed has left: nothing of it is loaded.
    site.nodes.on(node, "mkdir -p /var/lib/recipe-images/spool; echo broken > /var/lib/recipe-images/spool/image.tar")
    first = site.play(pair, runtime, image)
    assert first.code == 0, first.text
    layers = [site.inspect(name, runtime, f"{NAME}:1")["RootFS"]["Layers"] for name in pair]
    assert layers[0] == layers[1]
    for name in pair:
        assert site.nodes.on(name, "ls /var/lib/recipe-images 2>/dev/null || true") == ""
    again = site.play(pair, runtime, image)
    assert again.changed == dict.fromkeys(pair, 0), again.text
    # Other bytes under the same tag, without a digest.
    site.nodes.on(node, f"{runtime} pull -q {NAME}@{site.digests[1]}; {runtime} tag {NAME}@{site.digests[1]} {NAME}:1")
    told = site.play(pair, runtime, image, "--check")
    assert told.code == 0, told.text
    assert told.changed[node] > 0 == told.changed[source], told.text
    mended = site.play(pair, runtime, image)
    assert mended.code == 0, mended.text
    assert site.inspect(node, runtime, f"{NAME}:1")["RootFS"]["Layers"] == layers[0]


def check(site: Site, folder: Path) -> dict[str, set[str]]:
    """What ``recipe check`` finds wrong with the image, by check."""
    recipe = {
        "schema": 1, "name": "spark", "model": {"path": "/m", "served_name": "tiny"},
        "engine": {"kind": "vllm", "version": "0.32.0", "image": f"{NAME}:1", "args": {}},
        "resources": {"gpu": "GB10", "gpus_per_node": 1},
        "roles": {"serve": {"instances": 1, "parallel": {"tp": 2}}},
        "benchmarks": [{"client": "command", "command": ["true"]}],
    }  # fmt: skip
    profile = {"schema": 1, "name": "rig", "scheduler": "slurm", "runs": "/r", "container": {"runtime": "docker"}}
    profile["check"] = {"hosts": list(DOCKERS)}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    (folder / "rig.yaml").write_text(json.dumps(profile))
    argv = [Path(sys.executable).with_name("recipe"), "check", folder / "recipe.yaml", "-c", folder / "rig.yaml"]
    argv += ["--json", "-F", site.nodes.folder / "ssh_config", "--only", "IMAGE.DIGEST,DOCKER.STORE"]
    done = site.nodes.call("exec", "--", *argv)
    return {
        item["id"]: {node for finding in item["findings"] for node in finding["nodes"]}
        for item in json.loads(done.stdout)["checks"]
        if item["status"] != "passed"
    }


def test_the_preflight_finds_the_tag_of_another_image_and_the_role_mends_it(site, tmp_path):
    for name in DOCKERS:
        site.nodes.on(name, "docker images -q | sort -u | xargs -r docker rmi -f >&2")
    assert site.play(DOCKERS, "docker", {"reference": site.one}).code == 0
    assert check(site, tmp_path) == {}
    site.nodes.on("artaban", f"docker pull -q {NAME}@{site.digests[1]}; docker tag {NAME}@{site.digests[1]} {NAME}:1")
    found = check(site, tmp_path)
    assert list(found) == ["IMAGE.DIGEST"]
    assert "artaban" in found["IMAGE.DIGEST"]
    assert site.play(DOCKERS, "docker", {"reference": site.one}).code == 0
    assert check(site, tmp_path) == {}


def test_what_stands_in_the_way_is_told_with_its_place(site):
    node = ("casper",)
    full = site.play(node, "podman", {"reference": site.two.replace(":1@", ":2@"), "size_gb": 10**6})
    assert full.code == 2
    assert "casper: no space for 10.91.0.254:5000/vllm:2@sha256:" in full.words, full.text
    assert "/var/lib/podman has " in full.words
    assert "1000000.0 GB are to come" in full.words
    none = site.play(node, "podman", {"reference": f"{NAME}:3@sha256:{'0' * 64}"})
    assert none.code == 2
    assert f"casper: podman pull --quiet {NAME}@sha256:{'0' * 64}: " in none.words, none.text
    vague = site.play(node, "podman", {"reference": "vllm/vllm-openai:latest"})
    assert vague.code == 2
    assert "images_list: vllm/vllm-openai:latest: an image that nodes pull or import needs its digest" in vague.words
    lost = site.play(node, "podman", {"reference": "localhost/mine:1", "source": "casper"})
    assert lost.code == 2
    assert "casper is the source of localhost/mine:1, which is not there" in lost.words, lost.text


def test_enroot_imports_once_and_hands_the_file_on_with_its_sha256(site):
    for name in PODMEN:
        send(site.nodes, name, {"/usr/local/sbin/enroot": STUB.read_text()})
    source, node = PODMEN
    image = {"reference": site.one, "path": "/images/vllm/vllm.sqsh"}
    told = site.play(PODMEN, "enroot", image, "--check")
    assert told.code == 0, told.text
    assert all(told.changed.values())
    site.nodes.on(node, "mkdir -p /images/vllm; echo half > /images/vllm/.vllm.sqsh.part")
    first = site.play(PODMEN, "enroot", image)
    assert first.code == 0, first.text
    assert f"docker://10.91.0.254:5000#vllm:{site.digests[0]}" in site.nodes.on(source, "tail -1 /var/log/enroot")
    assert site.nodes.on(node, "cat /var/log/enroot 2>/dev/null || true") == ""
    for name in PODMEN:
        assert "vllm.sqsh: OK" in site.nodes.on(
            name, "cd /images/vllm; sha256sum -c vllm.sqsh.sha256; test ! -e .vllm.sqsh.part"
        )
    again = site.play(PODMEN, "enroot", image)
    assert again.changed == dict.fromkeys(PODMEN, 0), again.text
    other = site.play(PODMEN, "enroot", {**image, "reference": site.two})
    assert other.code == 0, other.text
    assert f"/images/vllm/vllm.sqsh is {site.one}, not {site.two}" in other.words
    assert site.digests[1] in site.nodes.on(
        node, "head -c 200 /images/vllm/vllm.sqsh; cd /images/vllm; sha256sum -c *.sha256"
    )


def test_a_reference_is_split_where_registries_have_ports(program):
    images = program("images", "images")
    assert images.split("r:5000/a/b:1@sha256:x") == ("r:5000/a/b", "1", "sha256:x")
    assert images.split("r:5000/a/b@sha256:x") == ("r:5000/a/b", "", "sha256:x")
    assert images.split("a:1") == ("a", "1", "")


def test_copies_are_the_same_by_digest_else_by_layers(program):
    images = program("images", "images")
    one = {"digests": ["sha256:1"], "layers": "a", "config": "c", "architecture": "arm64"}
    assert images.differ(one, {**one, "config": "d"}) == ""
    assert images.differ({**one, "digests": []}, one) == ""
    assert images.differ({**one, "digests": ["sha256:2"]}, one) == "", "the same, from another registry"
    assert images.differ({**one, "digests": [], "layers": "b"}, one) == "has layers b, not a"
    assert images.differ({**one, "digests": ["sha256:2"], "layers": "b"}, one) == "is sha256:2, not sha256:1"
    assert images.differ({**one, "digests": [], "architecture": "amd64"}, one) == "has architecture amd64, not arm64"
