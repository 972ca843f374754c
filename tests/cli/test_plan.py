"""``recipe plan`` as a user types it."""

from __future__ import annotations

import hashlib
import json

from plankit import RECIPES, ROOT
from recipe_toolkit.plan.draw import draw
from recipe_toolkit.plan.model import plan_from_json

SIM = ROOT / "recipes" / "tiny" / "sim-2p1d.yaml"
PLAIN = RECIPES / "clusters" / "plain.yaml"


def test_picture_and_commands(recipe):
    done = recipe("plan", SIM)
    assert (done.returncode, done.stderr) == (0, "")
    assert "node 2 |" in done.stdout
    assert "--kv-transfer-config" in done.stdout


def test_json_is_the_plan_that_is_drawn(recipe):
    drawn = recipe("plan", SIM, "--set", "roles.decode.parallel.dp=1")
    data = json.loads(recipe("plan", SIM, "--set", "roles.decode.parallel.dp=1", "--json").stdout)
    assert draw(plan_from_json(data)) == drawn.stdout
    assert {"name", "role", "instance", "node", "gpus", "argv", "env", "ports"} <= data["processes"][0].keys()


def test_profile_by_option_and_by_variable(recipe):
    file = RECIPES / "tp2-one-node.yaml"
    by_option = recipe("plan", file, "--cluster", PLAIN)
    by_variable = recipe("plan", file, RECIPE_CLUSTER=str(PLAIN))
    assert by_option.returncode == 0
    assert "/shared/models/moe" in by_option.stdout
    assert by_variable.stdout == by_option.stdout


def test_what_the_planner_refuses_has_its_line(recipe):
    done = recipe("plan", RECIPES / "base.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{RECIPES / 'base.yaml'}:3:15: model.path: 'moe' is no model of the profile local" in done.stderr
    assert "hint:" in done.stderr


def test_warnings_leave_stdout_alone(recipe):
    done = recipe("plan", SIM, "--json", "--set", 'engine.version="0.99.0"')
    assert done.returncode == 0
    assert "warning:" in done.stderr
    assert json.loads(done.stdout)["engine_version"] == "0.99.0"


def test_warnings_stand_in_json_and_refuse_where_asked_to(recipe):
    file = RECIPES / "tp2-two-nodes.yaml"
    words = ("plan", file, "-c", PLAIN, "--set", "engine.image=vllm/vllm-openai:latest")
    words = (*words, "--set", "lint.graph-below-load=eight of them are few")
    data = json.loads(recipe(*words, "--json").stdout)
    told = {item["rule"]: item for item in data["warnings"]}
    assert told["image-floats"]["severity"] == "warning"
    assert (told["nccl-device-unnamed"]["file"], list(data["lint"])) == (str(PLAIN), ["graph-below-load"])
    refused = recipe(*words, "--strict", "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert (error["field"], error["exit_code"]) == ("engine.image", 1)
    assert refused.stderr.count("[image-floats]") == 1
    # A note refuses nothing, and what is answered is no warning.
    answered = ("--set", "lint.image-floats=the registry moves no tags", "--strict")
    done = recipe(*words, *answered)
    assert done.returncode == 0, done.stderr
    assert (
        "lint answered:\n    graph-below-load: eight of them are few\n    image-floats: the registry moves no tags\n"
        in done.stdout
    )
    assert "[image-floats]" not in done.stderr


def test_all_flag_mistakes_at_once(recipe):
    sets = ["--set", "engine.args={max-num-seq: 4, port: 1}", "--set", "roles.decode.args={tensor-parallel-size: 2}"]
    done = recipe("plan", SIM, *sets)
    assert done.returncode == 1
    for text in ("write `max-num-seqs`", "cannot be set: ports", "say it in roles.decode.parallel.tp"):
        assert text in done.stderr


def test_setup_steps_and_where_they_may_run(recipe, tmp_path):
    file = tmp_path / "patched.yaml"
    (tmp_path / "fix.sh").write_text("#!/bin/sh -e\ntrue\n")
    file.write_text(f"extends: {RECIPES / 'docker.yaml'}\nname: patched\nsetup:\n  - script: fix.sh\n")
    digest = hashlib.sha256((tmp_path / "fix.sh").read_bytes()).hexdigest()
    shown = recipe("plan", file, "-c", RECIPES / "clusters" / "docker.yaml")
    assert f"fix  sha256 {digest}\n" in shown.stdout
    data = json.loads(recipe("plan", file, "-c", RECIPES / "clusters" / "docker.yaml", "--json").stdout)
    assert data["setup"] == [{"name": "fix", "sha256": digest, "path": "setup/01-fix.sh"}]
    # On the node itself they are refused; without a profile nobody knows.
    refused = recipe("plan", file, "-c", PLAIN)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{file}:3:1: setup: the profile plain runs the engine on the node itself" in refused.stderr
    assert recipe("validate", file).returncode == 0
    rehearsed = recipe("plan", file, "-c", PLAIN, "--rehearse")
    assert rehearsed.returncode == 0
    assert "setup: skipped in a rehearsal" in rehearsed.stdout
