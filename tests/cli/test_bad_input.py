"""Bad recipes, names and settings: each is refused in one message that says where, with exit code 1, leaving nothing.

One row an input. What is right and only looks odd stands in a table of its own: it must go on working.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe_support import GOOD, changed
from recipe_toolkit.errors import printable
from submit_support import make_run

RECIPE = Path(sys.executable).with_name("recipe")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every row's file, checked by one `recipe validate`: file name to what it says of it."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in {**_FILES, **_FIELDS, **_FINE}.items():
        content = text[0] if isinstance(text, tuple) else text
        (folder / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "folder").mkdir()
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    done = subprocess.run(
        [RECIPE, "validate", "--json", *names], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 1
    return {item["file"]: item for item in map(json.loads, done.stdout.splitlines())}


def _said(judged: Any, name: str) -> list[str]:
    item = judged[f"{name}.yaml"]
    assert not item["ok"]
    errors = [problem for problem in item["problems"] if problem["severity"] == "error"]
    return [
        printable(f"{item['line']}:{item['column']}: {item['field']}: {item['message']}".replace(": : ", ": "))
        for item in errors
    ]


def at(place: tuple[str, str], *more: tuple[str, str]) -> str:
    """The good recipe with its parts changed."""
    return changed(place, *more)


_DEEP = "a: " + "{a: " * 60 + "1" + "}" * 60
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"k{i}: &k{i} [{','.join([f'*k{i - 1}' if i else '*a'] * 9)}]\n" for i in range(9)
)

# name -> (content, what is said of it)
_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "1:1: is empty"),
    "comments": ("# nothing\n", "1:1: is empty"),
    "null": ("null\n", "1:1: is empty"),
    "list": ("- schema: 1\n", "1:1: holds a list, not a mapping"),
    "text": ("just text\n", "1:1: holds 'just text', not a mapping"),
    "toml": ("[a]\nb = 1\n", "2:1: not YAML: did not find expected <document start>"),
    "bracket": ("a: [1,\n", "2:1: not YAML: did not find expected node content while parsing a flow node"),
    "tab": (GOOD.replace("  kind", "\tkind"), "5:1: not YAML: found character that cannot start any token while"),
    "indent": (GOOD.replace("  kind", " kind"), "6:10: not YAML: mapping values are not allowed in this context"),
    "colon": (at(("name: good", "name: a: b")), "2:8: not YAML: mapping values are not allowed in this context"),
    "quote": (at(("name: good", "name: 'good")), "21:1: not YAML: found unexpected end of stream while scanning"),
    "duplicate": (GOOD + "name: again\n", "21:1: key `name` stands twice; first in line 2"),
    "two-documents": (GOOD + "---\n" + GOOD, "21:1: a second document begins here"),
    "directive": ("%FOO x\n---\n" + GOOD, "1:5: not YAML: found unknown directive name while scanning a directive"),
    "python-tag": (
        at(("name: good", "name: !!python/object:os.system x")),
        "2:7: name: tag tag:yaml.org,2002:python/object:os.system is not supported",
    ),
    "own-tag": (at(("name: good", "name: !x good")), "2:7: name: tag !x is not supported"),
    "binary-tag": (
        at(("name: good", "name: !!binary Z29v")),
        "2:7: name: tag tag:yaml.org,2002:binary is not supported",
    ),
    "alias": (at(("name: good", "name: *x")), "2:7: no anchor &x stands before this alias"),
    "deep": (_DEEP, "1:201: nested more than 50 deep"),
    "bomb": (_BOMB, "more than 100000 values once aliases are followed"),
    "number-key": ("1: a\n" + GOOD, "1:1: key 1 is not a string"),
    "list-key": ("? [a]\n: 1\n" + GOOD, "1:3: a key must be a string"),
    "empty-key": ('"": 1\n' + GOOD, '1:1: "": unknown key'),
    "huge": (b"#" * ((1 << 20) + 1), "0:0: larger than 1 MiB: not a recipe or profile"),
    "many": ("a: [" + "1," * 100_001 + "]\n", "more than 100000 values"),
    "long-string": (at(('"1"', '"' + "x" * 120_001 + '"')), "8:26: engine.env.OMP_NUM_THREADS: a string longer than"),
    "latin-1": (at(("name: good", "name: gööd")).encode("latin-1"), "2:8: byte 0xf6 is not UTF-8 text"),
    "utf-16": (GOOD.encode("utf-16"), "1:1: is UTF-16, not UTF-8 text"),
    "utf-16-be": (b"\xfe\xff" + GOOD.encode("utf-16-be"), "1:1: is UTF-16, not UTF-8 text"),
    "utf-16-bare": (GOOD.encode("utf-16-le"), "1:2: character '\\x00' is not text"),
    "utf-32": (GOOD.encode("utf-32"), "1:1: is UTF-32, not UTF-8 text"),
    "nul": (GOOD.encode() + b"\0", "21:1: character '\\x00' is not text"),
    "nul-escape": (at(("name: good", 'name: "a\\0"')), "2:7: name: a string cannot hold '\\x00'"),
    "bell": (at(("name: good", "name: a\a")), "2:8: character '\\x07' is not text"),
    "program": (b"\x7fELF\x02\x01\x00", "1:1: character '\\x7f' is not text"),
    "extends-missing": ("extends: none.yaml\nname: x\n", "1:10: extends: no such file: none.yaml"),
    "extends-folder": ("extends: folder\n", "0:0: cannot be read: is a directory"),
    "extends-itself": (
        "extends: extends-itself.yaml\n",
        "1:10: extends: recipes extend each other: extends-itself.yaml -> extends-itself.yaml",
    ),
    "extends-circle": ("extends: extends-back.yaml\n", "1:10: extends: recipes extend each other: extends-circle.yaml"),
    "extends-back": ("extends: extends-circle.yaml\n", "1:10: extends: recipes extend each other: extends-back.yaml"),
    "extends-number": ("extends: 3\n", "1:10: extends: 3 is not the path of a base recipe"),
    "extends-bad-base": ("extends: tab.yaml\n", "5:1: not YAML: found character that cannot start any token"),
}

_NAME = "is not a name (letters, digits, '.', '_' and '-', with a letter or digit first, 80 at most)"


def _served(value: str, shown: str) -> tuple[str, str]:
    return at(("served_name: llama", f"served_name: {value}")), f"3:43: model.served_name: {shown}"


def _path(value: str, shown: str) -> tuple[str, str]:
    return at(("path: /models/llama", f"path: {value}")), f"3:15: model.path: {shown}"


def _image(value: str, shown: str) -> tuple[str, str]:
    return at(("kind: vllm", f"kind: vllm\n  image: {value}")), f"6:10: engine.image: {shown}"


def _env(value: str, shown: str) -> tuple[str, str]:
    return at(('OMP_NUM_THREADS: "1"', f"FOO: {value}")), f"8:14: engine.env.FOO: {shown}"


def _tp(value: str, shown: str) -> tuple[str, str]:
    return at(("tp: 4", f"tp: {value}")), f"12:41: roles.decode.parallel.tp: {shown}"


def _flag(flag: str, shown: str) -> tuple[str, str]:
    return at(("max-num-seqs: 16", flag)), f"12:59: roles.decode.args.{shown}"


def _load(value: str, shown: str) -> tuple[str, str]:
    return at(("concurrency: [1, 8], requests_per_concurrency: 10", value)), shown


_FIELDS: dict[str, tuple[str, str]] = {
    "unknown-key": (at(("name: good", "name: good\nnaem: x")), "3:1: naem: unknown key"),
    "unknown-inner-key": (at(("tp: 4", "ttp: 4")), "12:37: roles.decode.parallel.ttp: unknown key"),
    "control-key": (at(("router:", '"rou\\eter":')), "14:1: a string cannot hold '\\x1b'"),
    "wrong-type": _tp("[4]", "a list is not an integer"),
    "scalar-on": (at(("tp: 4", "ep: on")), "12:41: roles.decode.parallel.ep: 'on' is not true or false"),
    "scalar-yes": (at(("tp: 4", "ep: yes")), "12:41: roles.decode.parallel.ep: 'yes' is not true or false"),
    "scalar-exponent": _tp("1e3", "1000.0 is not an integer"),
    "scalar-float": _tp("4.0", "4.0 is not an integer"),
    "scalar-underscore": _tp("1_000", "'1_000' is not an integer"),
    "scalar-date": _tp("2026-01-01", "'2026-01-01' is not an integer"),
    "scalar-nan": _tp(".nan", ".nan is not a finite number"),
    "scalar-inf": _tp("-.inf", "-.inf is not a finite number"),
    "scalar-overflow": _tp("1e999", "1e999 is too large a number"),
    "scalar-huge": _tp("9" * 30, f"{'9' * 30} is too large a number"),
    "scalar-digits": _tp("9" * 5000, f"{'9' * 40}... is too large a number"),
    "scalar-hex-huge": _tp("0x" + "f" * 30, f"0x{'f' * 30} is too large a number"),
    "scalar-null": _tp("null", "is null"),
    "negative": _tp("-4", "-4 is less than 1"),
    "zero": _tp("0", "0 is less than 1"),
    "nodes-1e9": (
        at(("instances: 2", "instances: 1000000000")),
        "11:24: roles.prefill.instances: 1000000000 is more than 4096",
    ),
    "gpus-1e7": (
        at(("tp: 4, dp: 2", "tp: 4096, dp: 4096")),
        "12:3: roles.decode: 1 x 16777216 GPUs are more than the 100000 that a plan can hold",
    ),
    "isl-1e12": (
        at(("isl: 1024", "isl: 1000000000000")),
        "16:27: benchmarks.0.isl: 1000000000000 is more than 100000000",
    ),
    "isl-negative": (at(("isl: 1024", "isl: -1")), "16:27: benchmarks.0.isl: -1 is less than 1"),
    "points-1e5": _load(
        f"concurrency: {list(range(1, 99_000))}, requests: 1",
        "16:56: benchmarks.0.concurrency: has 98999 items, at most 500",
    ),
    "points-of-all": (
        at(
            (
                "  - {client: aiperf, isl: 1024, osl: 128, concurrency: [1, 8], requests_per_concurrency: 10}\n",
                "".join(
                    f"  - {{client: aiperf, name: b{i}, isl: 8, osl: 8, requests: 400, "
                    f"concurrency: {list(range(1, 401))}}}\n"
                    for i in range(30)
                ),
            )
        ),
        "15:1: benchmarks: 12001 points are more than the 10000 of a run",
    ),
    "concurrency-huge": _load(
        "concurrency: [10000000], requests: 1", "16:57: benchmarks.0.concurrency.0: 10000000 is more than 1000000"
    ),
    "requests-huge": _load(
        "concurrency: [1000000], requests_per_concurrency: 1000",
        "16:93: benchmarks.0.requests_per_concurrency: 1000000000 requests are more than the 10000000 of a point",
    ),
    "warmup-huge": _load(
        "concurrency: [1], requests: 1, warmup: 100000000",
        "16:82: benchmarks.0.warmup: 100000000 requests are more than the 10000000 of a point",
    ),
    "rate-zero": _load("request_rate: [0], requests: 1", "16:58: benchmarks.0.request_rate.0: 0 is not more than 0"),
    "rate-never-ends": _load(
        "request_rate: [5, 1e-300], requests: 10",
        "16:61: benchmarks.0.request_rate.1: 10 requests at 1e-300 a second take 1e+301 s, and the point may take 3600",
    ),
    "time-limit-number": (at(("04:00:00", "4")), "19:13: time_limit: 4 has no unit"),
    "time-limit-zero": (at(("04:00:00", '"0"')), "19:13: time_limit: '0' is not more than zero"),
    "time-limit-years": (at(("04:00:00", "999-00")), "19:13: time_limit: '999-00' is longer than a year"),
    "deadline-negative": (at(("1h30m", "-5")), "18:20: deadlines.ready: -5 is not more than zero"),
    "served-newline": _served('"a\\nb"', "'a\\nb' holds '\\n'"),
    "served-space": _served("a b", "'a b' holds ' '"),
    "served-comma": _served('"a,b"', "'a,b' holds ','"),
    "served-dash": _served("-x", "'-x' begins with -, as a flag does"),
    "served-zero-width": _served('"a\\u200bb"', "'a\\u200bb' holds '\\u200b'"),
    "served-escape": _served('"a\\eb"', "a string cannot hold '\\x1b'"),
    "served-right-to-left": _served('"a\\u202eb"', "a string cannot hold '\\u202e'"),
    "served-surrogate": (
        at(("served_name: llama", 'served_name: "\\ud800"')),
        "3:46: not YAML: found invalid Unicode character escape code while parsing a quoted scalar",
    ),
    "path-newline": _path('"/m/a\\nb"', "'/m/a\\nb' holds '\\n'"),
    "path-right-to-left": _path('"/m/\\u202ea"', "a string cannot hold '\\u202e'"),
    "path-dash": _path("-x", "'-x' begins with -, as a flag does"),
    "path-home": _path("~/m", "'~/m' is a relative path"),
    "path-long": _path("/" + "a" * 4095, f"'/{'a' * 55}... is longer than 4095 bytes"),
    "path-hub-revision": _path("hf:a/b@$(x)", "'hf:a/b@$(x)' is not of the form hf:ORG/REPO[@REVISION]"),
    "path-hub-dash": _path("hf:-a/b", "'hf:-a/b' is not of the form hf:ORG/REPO[@REVISION]"),
    "path-hub-dots": _path("hf:../..", "'hf:../..' is not of the form hf:ORG/REPO[@REVISION]"),
    "image-newline": _image('"a\\nb"', "'a\\nb' holds '\\n'"),
    "image-space": _image("a b", "'a b' holds ' '"),
    "image-dash": _image('"--privileged"', "'--privileged' begins with -, as a flag does"),
    "image-empty": _image('""', "is empty"),
    "env-number": _env("1", "1 is not a string"),
    "env-null": _env("null", "is null"),
    "env-nul": _env('"a\\0"', "a string cannot hold '\\x00'"),
    "env-escape": _env('"\\e[31m"', "a string cannot hold '\\x1b'"),
    "env-name": (at(("OMP_NUM_THREADS:", '"A B":')), "8:9: engine.env.\"A B\": 'A B' is not the name of an"),
    "env-name-equals": (at(("OMP_NUM_THREADS:", '"A=B":')), "8:9: engine.env.\"A=B\": 'A=B' is not the name of an"),
    "name-dots": (at(("name: good", "name: ..")), f"2:7: name: '..' {_NAME}"),
    "name-space": (at(("name: good", "name: a b")), f"2:7: name: 'a b' {_NAME}"),
    "name-dash": (at(("name: good", "name: -a")), f"2:7: name: '-a' {_NAME}"),
    "name-emoji": (at(("name: good", "name: 🚀")), f"2:7: name: '🚀' {_NAME}"),
    "name-percent": (at(("name: good", "name: a%j")), f"2:7: name: 'a%j' {_NAME}"),
    "name-newline": (at(("name: good", 'name: "a\\n"')), f"2:7: name: 'a\\n' {_NAME}"),
    "name-number": (at(("name: good", "name: 12")), f"2:7: name: 12 {_NAME}"),
    "bench-name": (at(("{client: aiperf,", "{client: aiperf, name: a/b,")), f"16:28: benchmarks.0.name: 'a/b' {_NAME}"),
    "command-empty": (at(("[my-bench, --quick]", '[""]')), "17:33: benchmarks.1.command.0: is empty"),
    "command-null": (at(("[my-bench, --quick]", "[null]")), "17:33: benchmarks.1.command.0: is null"),
    "flag-unknown": _flag("max-num-seq: 16", "max-num-seq: vLLM 0.32.0 has no flag --max-num-seq"),
    "flag-newline": _flag('"a\\nb": 1', '"a\\nb": vLLM 0.32.0 has no flag --a\\nb'),
    "flag-type": _flag("max-num-seqs: 1e3", "max-num-seqs: needs an integer, and is 1000.0"),
}  # fmt: skip

_FINE: dict[str, str | bytes] = {
    "fine": GOOD,
    "fine-bom": b"\xef\xbb\xbf" + GOOD.encode(),
    "fine-crlf": GOOD.replace("\n", "\r\n"),
    "fine-cr": GOOD.replace("\n", "\r"),
    "fine-document-end": f"---\n{GOOD}...\n",
    "fine-octal": at(("tp: 4", "tp: 0o4")),
    "fine-hex": at(("tp: 4", "tp: 0x4")),
    "fine-date-name": at(("name: good", "name: 2026-01-01")),
    "fine-alias": at(("{instances: 2,", "&p {instances: 2,"), ("  decode: {inst", "  decode: {<<: *p, inst")),
    "fine-served": at(("served_name: llama", "served_name: org/модель-🚀@$HOME`x`'")),
    "fine-path": at(("path: /models/llama", "path: /models/a b/$HOME/`x`/%j/'é")),
    "fine-env": at(('OMP_NUM_THREADS: "1"', "FOO: \"a\\nb $HOME `x` 'q' 🚀 -x %j\"")),
    "fine-large": at(("instances: 2, parallel: {tp: 2}", "instances: 4096, parallel: {tp: 8}")),
}


@pytest.mark.parametrize("name", [*_FILES, *_FIELDS])
def test_recipes_that_are_refused(judged: Any, name: str) -> None:
    wanted = {**_FILES, **_FIELDS}[name][1]
    found = _said(judged, name)
    assert any(wanted in line for line in found), found
    assert len(found) == 1 or name in ("list-key", "number-key", "bomb", "control-key"), found


@pytest.mark.parametrize("name", _FINE)
def test_recipes_that_only_look_odd(judged: Any, name: str) -> None:
    assert judged[f"{name}.yaml"]["ok"], judged[f"{name}.yaml"]


# --- what is no file


@pytest.mark.parametrize("verb", ["validate", "plan"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "cannot be read: no such file or directory"),
        ("folder", "cannot be read: is a directory"),
        ("loop", "cannot be read: too many levels of symbolic links"),
        ("pipe", "is a pipe, not a file"),
        ("socket", "cannot be read: no such device or address"),
        ("/dev/zero", "is a device, not a file"),
        ("/dev/tty", "cannot be read: no such device or address"),
        ("folder/none/x", "cannot be read: no such file or directory"),
        ("file/x", "cannot be read: not a directory"),
        ("n" * 300, "cannot be read: file name too long"),
        ("secret", "cannot be read: permission denied"),
        ("", "no recipe in this folder"),
    ],
)
def test_what_is_no_file(recipe: Any, verb: str, name: str, message: str) -> None:
    folder = recipe.folder
    (folder / "folder").mkdir()
    (folder / "file").touch()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "secret").write_text(GOOD)
    (folder / "secret").chmod(0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        done = weak(recipe, verb, name)
    said = done.stderr.removeprefix("Error: ").partition("\n")[0]
    if verb == "plan" and name == "":
        message = "cannot be read: is a directory"
    if verb == "validate" and name == "folder":
        message = "no recipe in this folder"
    assert (done.returncode, done.stdout, said) == (1, "", f"{name or '.'}: {message}")


def weak(recipe: Any, *words: str) -> subprocess.CompletedProcess[str]:
    """`recipe` without root's right to read what it may not, in a session without a terminal."""
    less = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*less, RECIPE, *words],
        cwd=recipe.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize("kind", ["folder", "pipe", "secret"])
def test_a_base_that_is_no_file(recipe: Any, kind: str) -> None:
    (recipe.folder / "folder").mkdir()
    os.mkfifo(recipe.folder / "pipe")
    (recipe.folder / "secret").touch(mode=0)
    (recipe.folder / "r.yaml").write_text(f"extends: {kind}\n")
    done = weak(recipe, "validate", "r.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{kind}: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "name", [b"\xff.yaml", "ü 🚀.yaml".encode(), b"-r.yaml", b"a\nb\x1b[31m.yaml", b"%j$HOME`x`'\".yaml"]
)
def test_a_file_name_that_looks_odd(recipe: Any, name: bytes) -> None:
    """Right or wrong, each file has its own line, and a terminal is told nothing that it would obey."""
    (recipe.folder / os.fsdecode(name)).write_text(GOOD)
    for words in (["validate"], ["plan"]):
        done = subprocess.run(
            [RECIPE, *words, "--", name], cwd=recipe.folder, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
    (recipe.folder / os.fsdecode(name)).write_text("a: [\n")
    done = subprocess.run(
        [RECIPE, "validate", "--", name], cwd=recipe.folder, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- profiles and --set


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("nowhere", "--cluster: no profile 'nowhere' in "),
        ("locla", "--cluster: no profile 'locla' in "),
        ("a\nb", "--cluster: no profile 'a\\nb' in "),
        ("..", "--cluster: no profile '..' in "),
        ("./none.yaml", "none.yaml: cannot be read: no such file"),
        ("./pipe", "pipe: is a pipe, not a file"),
        ("/tmp", "/tmp: cannot be read: is a directory"),
        ("./key.yaml", "key.yaml:4:1: rnus: unknown key"),
        ("./inner.yaml", "inner.yaml:5:9: slurm.partion: unknown key"),
        ("./alias.yaml", "alias.yaml:5:10: models.\"a b\": 'a b' holds ' '"),
        ("./alias-dash.yaml", "alias-dash.yaml:5:10: models.\"-a\": '-a' begins with -"),
        ("./runs.yaml", "holds '\\n'\n  hint: choose another path"),
        ("./unset.yaml", "unset.yaml:4:7: runs: $NO_SUCH_VARIABLE is not set in the environment"),
        ("./user.yaml", "user.yaml:4:7: runs: no such user: ~nobody-here"),
        ("./name.yaml", f"name.yaml:2:7: name: '../x' {_NAME}"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "submit"])
def test_profiles_that_are_refused(recipe: Any, verb: str, cluster: str, message: str) -> None:
    head = "schema: 1\nname: x\nscheduler: local\n"
    for name, text in {
        "key": head + "rnus: x\nruns: x\n",
        "inner": head + "runs: x\nslurm: {partion: x}\n",
        "alias": head + "runs: x\nmodels: {a b: /m}\n",
        "alias-dash": head + "runs: x\nmodels: {-a: /m}\n",
        "runs": head + 'runs: "a\\nb"\n',
        "unset": head + "runs: $NO_SUCH_VARIABLE/x\n",
        "user": head + "runs: ~nobody-here/x\n",
        "name": head.replace("name: x", "name: ../x") + "runs: x\n",
    }.items():
        (recipe.folder / f"{name}.yaml").write_text(text)
    os.mkfifo(recipe.folder / "pipe")
    (recipe.folder / "r.yaml").write_text(GOOD)
    before = sorted(recipe.folder.iterdir())
    done = recipe(verb, "r.yaml", "-c", cluster)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(recipe.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("", "--set : no path before the first ="),
        ("=", "--set =: no path before the first ="),
        ("name", "--set name: name: no = after the path"),
        ("name=", "--set name=: name: no value after ="),
        ("name=[", "--set name=[: not YAML: "),
        ("name=a: b: c", "--set name=a: b: c: not YAML: "),
        ("name=a\n---\nb", "--set name=a\\n---\\nb: a second document begins here"),
        ("name=\x1b", "--set name=\\x1b: character '\\x1b' is not text"),
        ("name=🚀", f"--set name=🚀: name: '🚀' {_NAME}"),
        ("name=-a", f"--set name=-a: name: '-a' {_NAME}"),
        ("name=!!python/object:x y", "tag tag:yaml.org,2002:python/object:x is not supported"),
        ("naem=x", "--set naem=x: naem: unknown key"),
        ("roles.serv.instances=1", "--set roles.serv.instances=1: roles.serv: unknown key"),
        ("roles.decode.instances.x=1", "roles.decode.instances is 1, not a mapping"),
        ("benchmarks.7.isl=1", "benchmarks has 2 items; the first is 0"),
        ("benchmarks.x=1", "benchmarks is a list"),
        ("benchmarks.-1=1", "benchmarks is a list"),
        ("roles.decode.parallel.tp=1e3", "roles.decode.parallel.tp: 1000.0 is not an integer"),
        ("roles.decode.parallel.tp=.nan", ".nan is not a finite number"),
        ("name=" + "x" * 100_000, "is not a name"),
        ("a." * 60 + "b=1", "unknown key"),
    ],
)
def test_sets_that_are_refused(recipe: Any, assignment: str, message: str) -> None:
    (recipe.folder / "r.yaml").write_text(GOOD)
    done = recipe("plan", "r.yaml", "--set", assignment)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr, done.stderr[:500]
    assert "Traceback" not in done.stderr


# --- the shell around the command


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LANG": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1", "TERM": "dumb"},
        {"COLUMNS": "1", "TERM": "xterm"},
    ],
)
def test_no_home_no_term_and_a_small_encoding(recipe: Any, env: dict[str, str]) -> None:
    (recipe.folder / "r.yaml").write_text(
        at(("served_name: llama", "served_name: модель-🚀"), ("name: good", "name: x"))
    )
    (recipe.folder / "bad.yaml").write_text("наме: 1\n")
    for words, code in ((["validate", "r.yaml"], 0), (["plan", "r.yaml"], 0), (["validate", "bad.yaml"], 1)):
        done = subprocess.run(
            [RECIPE, *words], cwd=recipe.folder, env={**env}, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
    make_run(recipe.folder / "runs", state="failed", message="модель-🚀 ist weg")
    for words in (["list"], ["status", "last"], ["logs", "last"], ["--help"]):
        done = subprocess.run(
            [RECIPE, *words], cwd=recipe.folder, env={**env}, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["validate", "r.yaml"], ["validate", "bad.yaml"], ["plan", "r.yaml"], ["list"], ["-h"]]
)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(recipe: Any, words: list[str], closed: str) -> None:
    (recipe.folder / "r.yaml").write_text(GOOD)
    (recipe.folder / "bad.yaml").write_text("a: [\n")
    line = f'"$0" {" ".join(words)} {closed}'
    done = subprocess.run(
        ["sh", "-c", line, RECIPE], cwd=recipe.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (1 if "bad.yaml" in words else 0)
    assert "Traceback" not in done.stdout + done.stderr


def test_a_current_folder_that_is_gone(recipe: Any) -> None:
    (recipe.folder / "r.yaml").write_text(GOOD)
    here = recipe.folder / "gone"
    for words, code in (
        (["validate", str(recipe.folder / "r.yaml")], 0),
        (["validate", "r.yaml"], 1),
        (["plan", str(recipe.folder / "r.yaml")], 1),
        (["list"], 1),
        (["status", "last"], 1),
        (["collect", "last"], 1),
        (["submit", str(recipe.folder / "r.yaml"), "-c", "local"], 1),
    ):
        here.mkdir()
        done = subprocess.run(
            ["sh", "-c", 'rmdir "$PWD"; exec "$0" "$@"', RECIPE, *words],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        assert code == 0 or done.stderr.startswith(("Error: the current folder is gone", "r.yaml: cannot be read")), (
            words
        )
