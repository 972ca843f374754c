"""The role ``packages``, which other roles install by: real apt, and a repository of small packages."""

from __future__ import annotations

import json

import pytest

from ansible_rig import Nodes
from apt_rig import Repository

NODE = "artaban"
PLAY = """
- name: Packages
  hosts: nodes
  gather_facts: false
  roles: [packages]
"""


@pytest.fixture(scope="module")
def install(nodes: Nodes, repository: Repository, tmp_path_factory):
    """``install(wanted, source, *words)`` runs the role on one node."""
    repository.add("rig-tool", "1.0", {"usr/bin/rig-tool": "#!/bin/sh\necho 1.0\n"})
    repository.add("rig-tool", "2.0", {"usr/bin/rig-tool": "#!/bin/sh\necho 2.0\n"})
    repository.add("rig-large", "1.0", size_kb=10**9)
    repository.publish()
    play = tmp_path_factory.mktemp("packages") / "play.yml"
    play.write_text(PLAY)

    def run(wanted: list[dict[str, str]], *words: str, **source: str):
        options = {
            "packages_wanted": wanted,
            "packages_source": repository.source() | source,
            "packages_variable": "mine",
        }
        return nodes.play(str(play), "-e", json.dumps(options), "--limit", NODE, *words)

    yield run
    nodes.on(NODE, "apt-mark unhold rig-tool; apt-get purge -qqy rig-tool; rm -f /etc/apt/sources.list.d/rig.sources")


@pytest.mark.ansible
def test_a_pinned_version_is_installed_and_held_and_a_second_run_changes_nothing(nodes, install):
    told = install([{"name": "rig-tool", "version": "1.0"}], "--check", "--diff")
    assert told.code == 0, told.text
    assert "Signed-By: /etc/apt/keyrings/rig.asc" in told.text
    assert "rig-tool=1.0" in told.text
    assert nodes.on(NODE, "ls /etc/apt/sources.list.d; command -v rig-tool || true").strip() == ""
    first = install([{"name": "rig-tool", "version": "1.0"}])
    assert first.code == 0, first.text
    assert nodes.on(NODE, "rig-tool; apt-mark showhold").split() == ["1.0", "rig-tool"]
    again = install([{"name": "rig-tool", "version": "1.0"}])
    assert again.changed == {NODE: 0}, again.text
    unpinned = install([{"name": "rig-tool"}])
    assert unpinned.changed == {NODE: 0}, unpinned.text
    other = install([{"name": "rig-tool", "version": "2.0"}])
    assert other.code == 0, other.text
    assert nodes.on(NODE, "rig-tool; apt-mark showhold").split() == ["2.0", "rig-tool"]


@pytest.mark.ansible
def test_what_stands_in_the_way_is_told_with_its_place_and_what_to_do(install, repository):
    wrong = install([{"name": "rig-tool", "version": "3.0"}, {"name": "rig-none"}])
    assert wrong.code == 2
    told = f"{NODE}: {repository.url} has no rig-tool 3.0, but 2.0, 1.0; no rig-none. Name another in mine"
    assert told in wrong.words, wrong.text
    large = install([{"name": "rig-large"}])
    assert large.code == 2
    assert f"{NODE}: no space for rig-large: /usr has " in large.words, large.text
    gone = install([{"name": "rig-none"}], name="gone", uris="http://10.91.0.254:9", key=repository.key)
    assert gone.code == 2
    assert f"{NODE}: cannot read http://10.91.0.254:9: Failed to fetch" in gone.words, gone.text
    assert "or name a mirror in mine" in gone.words
    keyless = install([{"name": "rig-none"}], name="keyless", key=f"{repository.url}/none.asc")
    assert f"cannot fetch the key {repository.url}/none.asc: Request failed" in keyless.words, keyless.text


HOLD = """
import fcntl, time
file = open("/var/lib/apt/lists/lock", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/held", "w").close()
time.sleep(25)
"""


@pytest.mark.ansible
def test_an_apt_that_is_at_work_is_waited_for(nodes, install):
    nodes.on(NODE, f"rm -f /run/held; cat > /tmp/hold.py <<'END'{HOLD}END")
    nodes.on(NODE, "(setsid python3 /tmp/hold.py </dev/null >/dev/null 2>&1 &)")
    nodes.on(NODE, "for i in $(seq 100); do test -e /run/held && exit; sleep 0.1; done; exit 1")
    played = install([{"name": "rig-tool", "version": "1.0"}])
    assert played.code == 0, played.text
    assert "FAILED - RETRYING" in played.text
    assert nodes.on(NODE, "rig-tool").strip() == "1.0"


@pytest.mark.ansible
def test_a_repository_that_another_key_has_signed_is_refused(nodes, install):
    nodes.on(NODE, "printf x > /etc/apt/keyrings/forged.asc")
    forged = install([{"name": "rig-none"}], name="forged")
    nodes.on(NODE, "rm -f /etc/apt/sources.list.d/forged.sources /etc/apt/sources.list.d/gone.sources")
    assert forged.code == 2
    assert "cannot read http" in forged.words, forged.text


def test_the_room_that_apt_asks_for_is_read_from_its_words(program, monkeypatch):
    packages = program("packages", "packages")
    text = "Need to get 300 kB/1,024 MB of archives.\n"
    text += "After this operation, 3,210 GB of additional disk space will be used."
    monkeypatch.setattr(packages, "run", lambda *argv: text)
    told = packages.space(["x"])
    assert any("3210000 MB are to come" in item for item in told), told
