"""The role ``model_weights``: every node has the model as its manifest says, and how it comes there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_rig import Nodes, Played, lanes

MODEL = "/models/tiny"
MB = 1_000_000


# -- the plan --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 50), min_size=1, max_size=12),
    count=st.integers(1, 7),
    links=st.integers(1, 3),
    data=st.data(),
)
def test_a_plan_gives_each_node_what_it_lacks_once_from_one_that_has_it_by_then(program, sizes, count, links, data):
    have = {f"n{i}": data.draw(st.sets(st.sampled_from(sorted(sizes)))) for i in range(count)}
    have["n0"] |= set(sizes) - set().union(*have.values())
    plan, span = program("model_weights", "schedule").schedule(sizes, have, links)
    held = {node: set(files) for node, files in have.items()}
    rows = {(node, link): list(row) for node, lists in plan.items() for link, row in enumerate(lists)}
    assert len(rows) == count * links
    while any(rows.values()):  # each link goes through its row in order; a file is awaited where it is not there yet
        ready = [key for key, row in rows.items() if row and row[0][0] in held[row[0][1]]]
        assert ready, f"each waits for another: {rows}"
        for key in ready:
            name, _ = rows[key].pop(0)
            assert name not in held[key[0]]
            held[key[0]].add(name)
    assert all(files == set(sizes) for files in held.values())
    assert span <= sum(max(1, size) for size in sizes.values()) * count


@pytest.mark.parametrize(("count", "files", "most"), [(2, 24, 1.0), (8, 24, 1.25), (32, 24, 1.4), (64, 24, 1.5)])
def test_the_time_of_a_plan_grows_with_the_logarithm_of_the_nodes(program, count, files, most):
    sizes = {f"model-{i:05}": MB for i in range(files)}
    have = {f"n{i}": set() if i else set(sizes) for i in range(count)}
    _, span = program("model_weights", "schedule").schedule(sizes, have, 1)
    assert span / sum(sizes.values()) <= most


def test_one_single_file_is_handed_on_by_each_node_that_has_it(program):
    have = {f"n{i}": set() if i else {"model"} for i in range(8)}
    assert program("model_weights", "schedule").schedule({"model": MB}, have, 1)[1] == 3 * MB


def test_a_file_that_nobody_has_is_named(program):
    with pytest.raises(ValueError, match="no node has these files as the manifest says: b"):
        program("model_weights", "schedule").schedule({"a": 1, "b": 1}, {"n0": {"a"}, "n1": set()}, 1)


# -- on nodes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cabled(nodes: Nodes) -> Nodes:
    """The four nodes, with addresses on their lanes."""
    return address(nodes, ("melchior", "balthasar", "casper", "artaban"))


def address(nodes: Nodes, names: Sequence[str]) -> Nodes:
    for name, interface, ip in lanes(names):
        nodes.on(name, f"ip addr replace {ip}/24 dev {interface}; ip link set {interface} mtu 9000")
    return nodes


@pytest.fixture
def model(cabled: Nodes) -> Iterator[Nodes]:
    """A model of six files on the first node, none anywhere else."""
    make_model(cabled, 5, MB)
    yield cabled
    for name in ("melchior", "balthasar", "casper", "artaban"):
        cabled.on(name, f"umount {MODEL} 2>/dev/null || true; rm -rf /models")


def make_model(nodes: Nodes, shards: int, size: int) -> None:
    nodes.on(
        "melchior",
        f"mkdir -p {MODEL}/extra {MODEL}/.cache; cd {MODEL}; echo '{{}}' > extra/config.json; touch .cache/lock empty;"
        f"for i in $(seq {shards}); do head -c {size} /dev/urandom > model-$i.safetensors; done",
    )


def play(nodes: Nodes, *words: str, limit: str = "all", **more: object) -> Played:
    options = {"model_weights_models": [{"path": MODEL}], "model_weights_margin_gb": 0, "model_weights_stall_s": 30}
    return nodes.play("playbooks/model_weights.yml", "-e", json.dumps({**options, **more}), "--limit", limit, *words)


def digest(nodes: Nodes, name: str) -> str:
    """One sum over all that ``name`` has of the model, once its own manifest holds."""
    return nodes.on(
        name, f"cd {MODEL}; sha256sum --quiet -c MANIFEST.sha256; sha256sum MANIFEST.sha256 | cut -c-64"
    ).strip()


@pytest.mark.ansible
def test_every_node_gets_the_model_over_the_lanes_and_a_second_run_changes_nothing(model):
    before = [int(n) for n in model.on("melchior", "cat /sys/class/net/e*/statistics/tx_bytes").split()]
    told = play(model, "--check")
    assert told.code == 0, told.text
    assert all(told.changed.values()), told.text
    assert "MANIFEST" not in model.on("melchior", f"ls {MODEL}")
    assert model.on("casper", f"ls -d {MODEL} 2>/dev/null || true") == ""

    first = play(model)
    assert first.code == 0, first.text
    assert first.changed == {"melchior": 1, "balthasar": 1, "casper": 1, "artaban": 1}
    sums = {digest(model, name) for name in ("melchior", "balthasar", "casper", "artaban")}
    assert len(sums) == 1
    text = model.on("artaban", f"cat {MODEL}/MANIFEST.sha256")
    assert [line.split("  ")[1] for line in text.splitlines()] == [
        "empty", "extra/config.json", *(f"model-{i}.safetensors" for i in range(1, 6))
    ]  # fmt: skip
    marker = json.loads(model.on("artaban", f"cat {MODEL}/.recipe-weights.json"))
    assert marker["manifest"] == hashlib.sha256(text.encode()).hexdigest()
    left = model.on("artaban", f"ls -A {MODEL}; ls /run/recipe-weights 2>/dev/null || true").split()
    assert not any("incoming" in name or name.endswith((".conf", ".err", ".lock")) for name in left), left
    assert "rsync" not in model.on("melchior", "ps -eo comm")

    after = [int(n) for n in model.on("melchior", "cat /sys/class/net/e*/statistics/tx_bytes").split()]
    sent = dict(
        zip(("lane 1", "management", "lane 0"), (b - a for a, b in zip(before, after, strict=True)), strict=True)
    )
    assert sent["lane 0"] + sent["lane 1"] > 5 * MB
    assert sent["management"] < MB

    again = play(model)
    assert again.code == 0, again.text
    assert again.changed == dict.fromkeys(first.changed, 0)


@pytest.mark.ansible
def test_a_flipped_byte_and_a_missing_shard_are_mended_even_on_the_first_node(model):
    assert play(model).code == 0
    wanted = digest(model, "melchior")
    flip = f"cd {MODEL}; touch -r {{0}} /tmp/t; printf X | dd of={{0}} bs=1 seek=4321 conv=notrunc 2>/dev/null;"
    flip += "touch -r /tmp/t {0}"
    model.on("melchior", flip.format("model-2.safetensors"))
    model.on("casper", flip.format("model-3.safetensors"))
    model.on("artaban", f"rm {MODEL}/model-1.safetensors")
    quick = play(model)  # looks at sizes and times, as rsync would
    assert quick.code == 0, quick.text
    assert quick.changed == {"melchior": 0, "balthasar": 0, "casper": 0, "artaban": 1}
    whole = play(model, model_weights_verify=True)
    assert whole.code == 0, whole.text
    assert whole.changed == {"melchior": 1, "balthasar": 0, "casper": 1, "artaban": 0}
    assert "mended: model-2.safetensors" in whole.words
    assert {digest(model, name) for name in ("melchior", "casper", "artaban")} == {wanted}


@pytest.mark.ansible
def test_a_copy_that_was_cut_off_goes_on_where_it_was(model):
    assert play(model, limit="melchior").code == 0
    model.on("balthasar", f"mkdir -p {MODEL}/.recipe-incoming")
    part = model.on("melchior", f"head -c 900000 {MODEL}/model-1.safetensors | base64 -w0")
    model.on("balthasar", f"echo {part[:100000]} | base64 -d > {MODEL}/.recipe-incoming/model-1.safetensors")
    # And the beginning of another revision's.
    model.on("balthasar", f"head -c 500000 /dev/zero > {MODEL}/.recipe-incoming/model-2.safetensors")
    before = received(model, "balthasar")
    played = play(model, limit="melchior,balthasar")
    assert played.code == 0, played.text
    digest(model, "balthasar")
    # Less than the whole by what was there; the one that began wrong came once more.
    assert 5.3 * MB < received(model, "balthasar") - before < 5.7 * MB
    assert model.on("balthasar", f"ls -A {MODEL}/.recipe-incoming 2>/dev/null || true") == ""


def received(nodes: Nodes, name: str) -> int:
    return sum(int(n) for n in nodes.on(name, "cat /sys/class/net/en*s0f1np1/statistics/rx_bytes").split())


@pytest.mark.ansible
def test_a_disk_that_is_too_small_is_refused_with_what_is_missing_before_anything_is_copied(model):
    model.on("artaban", f"mkdir -p {MODEL}; mount -t tmpfs -o size=3m tmpfs {MODEL}")
    played = play(model)
    assert played.code == 2
    assert f"artaban: no space for {MODEL}: {MODEL} has 0.0 GB free; 0.0 GB are to come" in played.words
    assert model.on("balthasar", "ls /models 2>/dev/null || true") == ""


@pytest.mark.ansible
@pytest.mark.parametrize(
    ("script", "node", "told"),
    [
        (f"rm -r {MODEL}", "melchior", f"{MODEL} is not there: put the model there, or say from which repository"),
        (f"ln -s nowhere {MODEL}/model-9.safetensors", "melchior", f"links that lead nowhere: {MODEL}/model-9"),
        (f"mkdir -p {MODEL}; touch {MODEL}/old.safetensors", "casper", "does not know, and an engine might load: old."),
        ("ip link set enp1s0f1np1 down", "casper", "from melchior (10.42.0.1)"),
    ],
)
def test_what_cannot_be_copied_is_told_plainly_and_nothing_keeps_serving(model, script, node, told):
    model.on(node, script)
    try:
        played = play(model, limit="melchior,casper", model_weights_stall_s=3)
        assert played.code == 2
        assert told in played.words, played.text
        assert "rsync" not in model.on("melchior", "ps -eo comm")
        assert model.on("melchior", "ls /run/recipe-weights 2>/dev/null || true") == ""
    finally:
        model.on("casper", "ip link set enp1s0f1np1 up")


@pytest.mark.ansible
def test_a_revision_is_downloaded_once_by_one_node_and_never_mixed_with_another(model):
    one, two = "1" * 39 + "a", "2" * 39 + "b"
    for revision in (one, two):
        hub = f"/srv/hub/org/tiny/{revision}"
        model.on("melchior", f"mkdir -p {hub}; head -c 100000 /dev/urandom > {hub}/model-1.safetensors")
    asked = {"path": "/models/hub", "repository": "org/tiny", "revision": one}
    pair = "melchior,casper"

    told = play(model, "--check", limit=pair, model_weights_models=[asked])
    assert told.code == 0, told.text
    assert model.on("melchior", "ls /models; grep download /var/log/hf || true").split() == ["tiny"]
    first = play(model, limit=pair, model_weights_models=[asked])
    assert first.code == 0, first.text
    again = play(model, limit=pair, model_weights_models=[asked])
    assert again.changed == {"melchior": 0, "casper": 0}, again.text
    other = play(model, limit=pair, model_weights_models=[{**asked, "revision": two}])
    assert other.code == 2
    assert f"/models/hub on melchior holds org/tiny@{one}, not org/tiny@{two}: give the other" in other.words
    lines = model.on("melchior", "grep download /var/log/hf").splitlines()
    assert lines == [f"download org/tiny --revision {one} --local-dir /models/hub"]
    wanted = model.on("melchior", f"sha256sum < /srv/hub/org/tiny/{one}/model-1.safetensors")
    for name in ("melchior", "casper"):
        assert (
            model.on(name, "cd /models/hub; sha256sum --quiet -c MANIFEST.sha256; sha256sum < model-1.safetensors")
            == wanted
        )

    branch = play(model, limit=pair, model_weights_models=[{**asked, "revision": "main"}])
    assert branch.code == 2
    assert "/models/hub: revision main: it is to be the commit of org/tiny" in branch.words
    gone = play(model, limit=pair, model_weights_models=[{**asked, "path": "/models/x", "revision": "3" * 40}])
    assert gone.code == 2
    assert f"404: no {'3' * 40} of org/tiny" in gone.words
    none = play(model, limit=pair, model_weights_models=[{**asked, "path": "/models/x"}], model_weights_hf="/opt/hf")
    assert none.code == 2
    assert "melchior: cannot run /opt/hf" in none.words
    assert "name its hf in model_weights_hf" in none.words
