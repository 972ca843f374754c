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
NAMES = ("melchior", "balthasar", "casper", "artaban")


# -- the plan --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 50), min_size=1, max_size=12),
    count=st.integers(1, 7),
    links=st.integers(1, 3),
    data=st.data(),
)
def test_a_plan_gives_each_node_what_it_lacks_once_and_no_node_sends_a_file_twice(program, sizes, count, links, data):
    have = {f"n{i}": data.draw(st.sets(st.sampled_from(sorted(sizes)))) for i in range(count)}
    have["n0"] |= set(sizes) - set().union(*have.values())
    plan = program("model_weights", "schedule").schedule(sizes, have, links)
    sent = [
        (name, senders[0], link) for rows in plan.values() for link, row in enumerate(rows) for name, senders in row
    ]
    assert len(set(sent)) == len(sent)
    for node, rows in plan.items():
        assert sorted(name for row in rows for name, _ in row) == sorted(set(sizes) - have[node])
    assert all(name in have[senders[-1]] for rows in plan.values() for row in rows for name, senders in row)
    rows = {(node, link): list(row) for node, lists in plan.items() for link, row in enumerate(lists)}
    held = {node: set(files) for node, files in have.items()}
    while any(rows.values()):  # each link goes through its row in order
        ready = [key for key, row in rows.items() if row and row[0][0] in held[row[0][1][0]]]
        assert ready, f"each waits for another: {rows}"
        for key in ready:
            held[key[0]].add(rows[key].pop(0)[0])


def test_the_links_of_a_node_carry_as_much_as_each_other(program):
    sizes = {f"model-{i:05}": MB + i for i in range(93)}
    have = {f"n{i}": set() if i else set(sizes) for i in range(8)}
    plan = program("model_weights", "schedule").schedule(sizes, have, 8)
    loads = [sum(sizes[name] for name, _ in row) for row in plan["n7"]]
    assert max(loads) - min(loads) <= MB + 93
    assert {senders[0] for row in plan["n7"] for _, senders in row} == {"n6"}


def test_a_file_that_nobody_has_is_named(program):
    with pytest.raises(ValueError, match="no node has these files as the manifest says: b"):
        program("model_weights", "schedule").schedule({"a": 1, "b": 1}, {"n0": {"a"}, "n1": set()}, 1)


# -- on nodes --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cabled(nodes: Nodes) -> Nodes:
    """The four nodes, with addresses on their lanes."""
    return address(nodes, NAMES)


def address(nodes: Nodes, names: Sequence[str]) -> Nodes:
    for name, interface, ip in lanes(names):
        nodes.on(name, f"ip addr replace {ip}/24 dev {interface}; ip link set {interface} mtu 9000")
    return nodes


@pytest.fixture
def model(cabled: Nodes) -> Iterator[Nodes]:
    """A model of six files on the first node, none anywhere else."""
    make_model(cabled, 5, MB)
    yield cabled
    for name in NAMES:
        cabled.on(name, f"umount {MODEL} 2>/dev/null || true; rm -rf /models")


def carried(nodes: Nodes) -> dict[str, tuple[int, int, int]]:
    """Bytes that each node has sent and received on its lanes, and sent on management, as the kernel counts them."""
    found = {}
    for name in NAMES:
        files = "cat en*s0f1np1/statistics/{0}_bytes enP7s7/statistics/{0}_bytes"
        script = f"cd /sys/class/net; {files.format('tx')}; {files.format('rx')}"
        sent1, sent0, management, got1, got0, _ = map(int, nodes.on(name, script).split())
        found[name] = (sent0 + sent1, got0 + got1, management)
    return found


def listening(nodes: Nodes, name: str) -> str:
    """What listens on a node's lanes."""
    return nodes.on(name, "grep -E ' 0A ' /proc/net/tcp | grep ':221A ' || true")


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
    told = play(model, "--check")
    assert told.code == 0, told.text
    assert all(told.changed.values()), told.text
    assert "MANIFEST" not in model.on("melchior", f"ls {MODEL}")
    assert model.on("casper", f"ls -d {MODEL} 2>/dev/null || true") == ""

    before = carried(model)
    first = play(model)
    after = carried(model)
    assert first.code == 0, first.text
    assert first.changed == {"melchior": 1, "balthasar": 1, "casper": 1, "artaban": 1}
    sums = {digest(model, name) for name in NAMES}
    assert len(sums) == 1
    text = model.on("artaban", f"cat {MODEL}/MANIFEST.sha256")
    assert [line.split("  ")[1] for line in text.splitlines()] == [
        "empty", "extra/config.json", *(f"model-{i}.safetensors" for i in range(1, 6))
    ]  # fmt: skip
    marker = json.loads(model.on("artaban", f"cat {MODEL}/.recipe-weights.json"))
    assert marker["manifest"] == hashlib.sha256(text.encode()).hexdigest()
    left = model.on("artaban", f"ls -A {MODEL}; ls /run/recipe-weights 2>/dev/null || true").split()
    assert not any("incoming" in name or name.endswith((".conf", ".err", ".lock")) for name in left), left
    assert listening(model, "melchior") == ""
    for name in NAMES:  # each link carries the model once, in each direction; the last of the chain sends nothing on
        sent, received, management = (after[name][i] - before[name][i] for i in range(3))
        assert sent == pytest.approx(0 if name == "artaban" else 5 * MB, rel=0.1, abs=0.3 * MB), name
        assert received == pytest.approx(0 if name == "melchior" else 5 * MB, rel=0.1, abs=0.3 * MB), name
        assert management < MB, name

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
        (f"rm -r {MODEL}", "melchior", f"{MODEL} is not there: put the model there, or say where it is (source"),
        (
            f'echo \'{{"weight_map": {{"a": "model-9.x"}}}}\' > {MODEL}/i.index.json',
            "melchior",
            "its index names: model-9",
        ),
        (f"mkdir {MODEL}/.recipe-incoming", "melchior", "is a copy that was cut off: name a node that has all of it"),
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
        assert listening(model, "melchior") == ""
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
