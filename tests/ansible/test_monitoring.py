"""The role ``monitoring``: a real Prometheus asks real exporters, and finds a recipe by the file that it leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import yaml

from ansible_rig import Nodes, Played, make_nodes
from apt_rig import Repository, make_repository

HEAD, NODE = "melchior", "balthasar"
SMI = """#!/bin/sh
echo "0, GPU-1, NVIDIA GB10, 97, 61, 48.50, 2405, [N/A], [N/A]"
"""
DCGM = """#!/usr/bin/python3
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'DCGM_FI_DEV_POWER_USAGE{gpu="3"} 900\\n')
http.server.HTTPServer(("", 9400), Handler).serve_forever()
"""
UNIT = "[Service]\nExecStart={}\n[Install]\nWantedBy=multi-user.target\n"


class Site:
    """Two nodes, one of them the head too."""

    def __init__(self, nodes: Nodes, repository: Repository) -> None:
        self.nodes, self.repository = nodes, repository

    def play(self, *words: str, **options: object) -> Played:
        said = {
            "monitoring_on": True,
            "monitoring_nodes": [HEAD, NODE],
            "monitoring_interval": "1s",
            "monitoring_gpu_exporter": f"{{{{ 'smi' if inventory_hostname == '{HEAD}' else 'dcgm' }}}}",
            "monitoring_dcgm_source": self.repository.source(),
            "monitoring_dcgm_version": "4.8.2-1",
            "monitoring_grafana_source": self.repository.source(),
            **options,
        }
        words = ("-e", json.dumps(said), "--limit", f"{HEAD},{NODE}", *words)
        return self.nodes.play("playbooks/monitoring.yml", *words)

    def ask(self, query: str) -> list[dict]:
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
        url = f"http://127.0.0.1:9090/api/v1/query?query={query}"
        return json.loads(self.nodes.on(HEAD, f"python3 -c '{code}' '{url}'"))["data"]["result"]

    def wait(self, query: str, count: int) -> list[dict]:
        deadline = time.monotonic() + 60
        while len(found := self.ask(query)) != count:
            assert time.monotonic() < deadline, f"waited 60 s for {count} series of {query}; there are {found}"
            time.sleep(0.3)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    for nodes in make_nodes(tmp_path_factory, "monitoring", 2):
        for repository in make_repository(nodes, tmp_path_factory.mktemp("monitoring")):
            unit = "usr/lib/systemd/system/{}.service"
            grafana = {"usr/sbin/grafana-server": "#!/bin/sh\nexec sleep 1000\n"}
            repository.add(
                "grafana", "12.0.0", {**grafana, unit.format("grafana-server"): UNIT.format("/usr/sbin/grafana-server")}
            )
            dcgm = {"usr/bin/dcgm-exporter": DCGM}
            repository.add(
                "datacenter-gpu-manager-exporter",
                "4.8.2-1",
                {**dcgm, unit.format("nvidia-dcgm-exporter"): UNIT.format("/usr/bin/dcgm-exporter")},
            )
            repository.publish()
            nodes.on(HEAD, f"cat > /usr/local/bin/nvidia-smi <<'END'\n{SMI}END\nchmod +x /usr/local/bin/nvidia-smi")
            yield Site(nodes, repository)


@pytest.mark.ansible
def test_two_bare_nodes_are_monitored_after_one_run_and_a_second_changes_nothing(site):
    told = site.play("--check", "--diff")
    assert told.code == 0, told.text
    assert all(told.changed.values())
    assert '+      - targets: ["10.91.0.2:9400"]' in told.text
    installed = "command -v prometheus grafana-server prometheus-node-exporter || ls -d /etc/prometheus || true"
    assert site.nodes.on(HEAD, installed) == ""
    first = site.play()
    assert first.code == 0, first.text
    up = {(item["metric"]["job"], item["metric"]["node"]) for item in site.ask("up==1")}
    assert up == {("nodes", HEAD), ("nodes", NODE), ("gpus", NODE)}
    power = site.wait("DCGM_FI_DEV_POWER_USAGE", 2)
    assert {item["metric"]["node"]: item["value"][1] for item in power} == {HEAD: "48.5", NODE: "900"}
    assert site.ask("DCGM_FI_DEV_FB_USED") == []
    files = [f"/etc/grafana/provisioning/{kind}/recipe-toolkit.yaml" for kind in ("datasources", "dashboards")]
    source, provider = (yaml.safe_load(site.nodes.on(HEAD, f"cat {file}")) for file in files)
    assert source["datasources"][0]["url"] == "http://127.0.0.1:9090"
    assert site.nodes.on(
        HEAD, f"ls -d {provider['providers'][0]['options']['path']}; systemctl is-active grafana-server"
    )
    assert site.nodes.on(NODE, "apt-mark showhold").split() == ["datacenter-gpu-manager-exporter"]
    again = site.play()
    assert again.code == 0, again.text
    assert again.changed == {HEAD: 0, NODE: 0}


@pytest.mark.ansible
def test_a_recipe_is_asked_while_its_file_is_there_and_prometheus_reads_changes_without_a_restart(site):
    # As the lead of a run writes it.
    labels = {"run": "r1", "recipe": "tiny", "role": "decode", "process": "decode-0", "rank": "0"}
    groups = json.dumps([{"targets": ["10.91.0.2:9400"], "labels": labels}])
    place = "/var/lib/recipe-targets"
    assert site.nodes.on(HEAD, f"stat -c %a {place}").strip() == "1777"
    site.nodes.on(HEAD, f"echo '{groups}' > {place}/.r1; mv {place}/.r1 {place}/r1.json")
    [found] = site.wait('up{job="recipes"}', 1)
    assert labels.items() <= found["metric"].items()
    pid = site.nodes.on(HEAD, "cat /run/shim/prometheus.service.pid")
    changed = site.play(monitoring_interval="2s")
    assert changed.code == 0, changed.text
    assert changed.changed[NODE] == 0 < changed.changed[HEAD]
    assert site.nodes.on(HEAD, "cat /run/shim/prometheus.service.pid") == pid
    site.nodes.on(HEAD, f"rm {place}/r1.json")
    site.wait('up{job="recipes"}', 0)


def test_what_a_gpu_does_not_have_is_left_out(program):
    figures = program("monitoring", "gpu_figures")
    text = figures.exposition("0, GPU-1, NVIDIA GB10, 97, 61, 48.50, 2405, [N/A], [N/A]\n")
    assert 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",modelName="NVIDIA GB10"} 97' in text
    assert "FB_USED" not in text
    assert figures.exposition("") == "recipe_gpu_figures_gpus 0\n"
