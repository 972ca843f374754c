"""`recipe report --serve` as anything on this machine may ask it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_toolkit.rundir import RunDir
from results_support import make_folder

RECIPE = Path(sys.executable).with_name("recipe")


class Site:
    def __init__(self, port: int, run: RunDir) -> None:
        self.port, self.run = port, run

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    run = make_folder(folder)
    (folder / "outside.txt").write_text("outside")
    (run.root / "bench" / "evil.html").write_text("<script>alert(1)</script>")
    (run.root / "link.txt").symlink_to(folder / "outside.txt")
    (run.root / "inner.txt").symlink_to(run.events)
    os.mkfifo(run.root / "pipe")
    process = subprocess.Popen(
        [RECIPE, "report", "--serve", run.root.parent, "--port", "0"], stderr=subprocess.PIPE, text=True, cwd=folder
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.match(r"http://127\.0\.0\.1:(\d+)/ shows .*/runs; Ctrl-C ends it\n", line)
    assert found, line
    yield Site(int(found[1]), run)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_the_list_leads_to_the_page_and_the_page_to_the_files(site):
    status, headers, page = site.ask("/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert f'href="./{site.run.id}/report.html"' in page
    assert 'class="badge bad">invalid' in page
    status, headers, page = site.ask(f"/{site.run.id}/report.html")
    assert status == 200
    assert "<h1>tiny-2p1d</h1>" in page
    assert not site.run.report.exists()  # made as it is asked for
    assert site.ask(f"/{site.run.id}/report.html", If_None_Match=headers["ETag"])[0] == 304
    assert site.ask(f"/{site.run.id}/report.html", "HEAD")[1]["ETag"] == headers["ETag"]
    links = set(re.findall(r'href="\./([^"]+)"', page.partition("<script>")[0]))
    assert len(links) > 8
    for link in links:
        if not (site.run.root / link).exists():
            continue  # a point whose client left nothing
        status, headers, _ = site.ask(f"/{site.run.id}/{link}")
        assert status == 200, link
        assert headers["X-Content-Type-Options"] == "nosniff"
    status, headers, _ = site.ask(f"/{site.run.id}")
    assert (status, headers["Location"]) == (302, f"/{site.run.id}/report.html")


def test_files_are_shown_and_never_run(site):
    status, headers, text = site.ask(f"/{site.run.id}/bench/evil.html")
    assert (status, text) == (200, "<script>alert(1)</script>")
    assert headers["Content-Type"].startswith("text/plain")
    status, headers, text = site.ask(f"/{site.run.id}/bench")
    assert (status, headers["Location"]) == (302, f"/{site.run.id}/bench/")
    assert 'href="./evil.html"' in site.ask(f"/{site.run.id}/bench/")[2]
    assert site.ask(f"/{site.run.id}/inner.txt")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/{run}/../outside.txt",
        "/{run}/../../outside.txt",
        "/../outside.txt",
        "/{run}/%2e%2e/%2e%2e/outside.txt",
        "/{run}/..%2f..%2foutside.txt",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/{run}//etc/passwd",
        "/{run}/%2fetc%2fpasswd",
        "//etc/passwd",
        "/{run}/link.txt",
        "/{run}/pipe",
        "/{run}/token",
        "/{run}/bench/../token",
        "/{run}/%00",
        "/{run}/" + "x" * 5000,
        "/outside.txt",
        "/nothing/report.html",
        "/nothing.html",
    ],
)
def test_nothing_else_is_shown(site, path):
    status, _, text = site.ask(path.format(run=site.run.id))
    assert status == 404
    assert "outside" not in text
    assert "root:" not in text
    assert "s3cr3t" not in text


def test_a_foreign_name_for_this_machine_is_refused(site):
    assert site.ask("/", Host="evil.example:80")[0] == 403
    assert site.ask("/", Host="")[0] == 403
    for host in ("localhost", f"localhost:{site.port}", f"127.0.0.1:{site.port}"):
        assert site.ask("/", Host=host)[0] == 200
    assert site.ask("/", "POST")[0] == 501


def test_it_listens_on_this_machine_alone(site):
    held = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = [fields[1] for fields in held if fields[3] == "0A" and fields[1].endswith(f":{site.port:04X}")]
    assert listening == [f"0100007F:{site.port:04X}"]


def test_a_broken_run_is_told_and_the_others_are_shown(site):
    broken = site.run.root.with_name("2026-11-30-broken")
    broken.mkdir()
    (broken / "plan.json").write_text("{")
    status, _, text = site.ask("/2026-11-30-broken/report.html")
    assert status == 500
    assert "cannot be read" in text
    assert "2026-11-30-broken" in site.ask("/")[2]
    assert site.ask(f"/{site.run.id}/report.html")[0] == 200


def test_a_port_that_is_taken_is_told(tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        done = subprocess.run(
            [RECIPE, "report", "--serve", tmp_path, "--port", str(port)], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    said = f"Error: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert done.stderr == f"{said}\nhint: another port: --port N, or 0 for any\n"


def test_what_does_not_go_together(recipe):
    for words in (["--serve", "a", "b"], ["--serve", "-o", "x"], ["--serve", "--json"], ["last", "--port", "1"]):
        done = recipe("report", *words)
        assert done.returncode == 2, words
    assert recipe("report", "--serve", "none").returncode == 1
    assert json.loads(recipe("report", "--json", "none").stdout)["error"]
