"""Recipes of other tools: what is made of each made-up file, and that no key of them goes unseen."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_toolkit.document import Document, parse_yaml, read_document
from recipe_toolkit.errors import InputError
from recipe_toolkit.importers import output
from recipe_toolkit.importers.imported import Imported, import_file
from recipe_toolkit.importers.notes import KINDS, lines
from recipe_toolkit.recipe_loader import load_recipe

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
FILES = {path.stem: path for path in sorted(FOREIGN.glob("*.yaml"))}
REFUSED = {"srt1-sglang"}
GOOD = sorted(FILES.keys() - REFUSED)


def imported(name: str) -> Imported:
    """A made-up file under its name alone, so that no path of this machine is in what is made."""
    return import_file(Path(f"{name}.yaml"), None, parse_yaml(FILES[name].read_text(encoding="utf-8"), f"{name}.yaml"))


@pytest.mark.parametrize("name", GOOD)
def test_what_is_made(name: str, golden: Any) -> None:
    one = imported(name)
    for recipe in one.recipes:
        golden(f"import/{name}/{recipe.name}.yaml", output.recipe_text(one, recipe))
    # What is said of a version depends on the lists that there are.
    warnings = [problem.render() for problem in one.warnings if problem.field != "engine.version"]
    report = [*lines(one.notes), *warnings]
    golden(f"import/{name}/report.txt", "".join(f"{line}\n" for line in report))
    golden(f"import/{name}/profile.yaml", output.profile_text([one], "site"))


@pytest.mark.parametrize("name", GOOD)
def test_the_files_load_to_what_was_checked(name: str, tmp_path: Path) -> None:
    one = imported(name)
    paths = output.save([one], tmp_path / "out", tmp_path / "site.yaml")
    assert len(paths.get(f"{name}.yaml", [])) == len(one.recipes)
    for recipe in one.recipes:
        loaded = load_recipe(tmp_path / "out" / f"{recipe.name}.yaml")
        assert loaded.data == {**recipe.loaded.data, "name": recipe.name}
        whole = tmp_path / "whole.yaml"
        whole.write_text(output.recipe_text(one, recipe, whole=True), encoding="utf-8")
        assert load_recipe(whole).data == loaded.data


def test_nothing_is_lost_of_what_has_a_place() -> None:
    one = imported("srt1-lossless")
    assert one.lossless
    assert {note.kind for note in one.notes} == {"changed"}


def test_an_engine_that_is_not_vllm_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError) as refused:
        imported("srt1-sglang")
    (problem,) = refused.value.problems
    assert (problem.field, problem.line) == ("backend.type", 4)
    assert "SGLang" in problem.message


def mappings(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each mapping in the data."""
    if isinstance(data, list):
        return [found for index, item in enumerate(data) for found in mappings(item, (*path, index))]
    if not isinstance(data, dict):
        return []
    return [path, *(found for key, item in data.items() for found in mappings(item, (*path, key)))]


INVENTED = "zz_invented"
PLACES = [(name, path) for name in GOOD for path in mappings(read_document(FILES[name]).data)]


@pytest.mark.parametrize(
    ("name", "path"), PLACES, ids=lambda item: item if isinstance(item, str) else ".".join(map(str, item))
)
def test_a_key_that_nobody_knows_is_carried_refused_or_named(name: str, path: tuple[Any, ...]) -> None:
    """Wherever it stands: what no importer reads must not go unseen."""
    document = read_document(FILES[name])
    holder = document.data
    for part in path:
        holder = holder[part]
    holder[INVENTED] = "7x7"
    try:
        one = import_file(FILES[name], None, document)
    except InputError as error:
        told = [f"{problem.field} {problem.message}" for problem in error.problems]
    else:
        told = [f"{note.field} {note.value}" for note in one.notes]
        told += [str(recipe.data) for recipe in one.recipes] + [str(one.profile.data)]
    assert any(INVENTED in item or INVENTED.replace("_", "-") in item for item in told), told


def test_notes_name_the_line_and_what_follows() -> None:
    notes = {note.field: note for note in imported("srt1-disagg").notes}
    lost = notes["telemetry"]
    assert (lost.kind, lost.place.line, lost.value) == ("lost", 129, '{"enabled": true}')
    assert lost.message == "no power is measured"
    assert notes["backend.decode_environment.TOY_TOKEN"].value == "…"
    assert {note.kind for note in notes.values()} <= KINDS.keys()


def test_a_key_cannot_break_out_of_the_comment_that_names_it() -> None:
    document = read_document(FILES["srt1-lossless"])
    document.data["x\nname: other"] = "y"
    one = import_file(FILES["srt1-lossless"], None, document)
    text = output.recipe_text(one, one.recipes[0])
    assert '# Lost: "x\\nname: other" (line 2)\n' in text
    assert parse_yaml(text, "r").data == one.recipes[0].data


def test_our_own_refusal_is_told_at_their_line(tmp_path: Path) -> None:
    text = FILES["srt1-lossless"].read_text(encoding="utf-8")
    path = tmp_path / "r.yaml"
    path.write_text(
        text.replace("max-model-len: 2048}\n    decode", "max-modle-len: 2048}\n    decode"), encoding="utf-8"
    )
    with pytest.raises(InputError) as refused:
        import_file(path)
    (problem,) = refused.value.problems
    assert (problem.file, problem.line) == (str(path), 12)
    assert "max-modle-len" in problem.render()


MASTER = FOREIGN / "inferencex" / "configs" / "master.yaml"


def test_entries_of_a_master_file_lead_to_the_files_that_they_name() -> None:
    one = import_file(MASTER)
    assert [recipe.name for recipe in one.recipes] == ["toy-pd"]
    lost = {note.field.split(".")[0]: note.message for note in one.notes if note.kind == "lost"}
    assert lost["toy-fp8-h200-vllm"] == "its flags stand in a shell script, not in a recipe"
    assert "no such file" in lost["toy-fp8-h200-dynamo-vllm"]
    with pytest.raises(InputError, match="shell script"):
        import_file(MASTER, "toy-fp8-h200-vllm")
    with pytest.raises(InputError, match="no entry 'none'"):
        import_file(MASTER, "none")


@pytest.mark.parametrize("key", ["toy-fp8-h200-vllm", "toy-fp8-h200-dynamo-vllm"])
def test_a_label_that_nobody_knows_is_named(key: str) -> None:
    document = read_document(MASTER)
    document.data[key][INVENTED] = 1
    document.data[INVENTED] = 1
    lost = {note.field for note in import_file(MASTER, None, document).notes if note.kind == "lost"}
    assert {INVENTED, f"{key}.{INVENTED}"} <= lost


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sglang serve x", "is not one command of the form vllm serve MODEL --FLAGS"),
        ("vllm serve a && vllm serve b", "is not one command"),
        ("vllm serve 'a", "cannot be split into words: no closing quotation"),
    ],
)
def test_commands_that_cannot_be_read(tmp_path: Path, command: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"model: a/b\ncontainer: c\ncommand: |\n  {command}\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        import_file(path)
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (3, "command")
    assert message in problem.message


def test_a_setup_script_is_taken_from_configs_above(tmp_path: Path) -> None:
    script = "#!/bin/sh -e\npip install toy\n"
    for folder in ("configs", "recipes/toys"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "configs" / "prepare.sh").write_text(script, encoding="utf-8")
    path = tmp_path / "recipes" / "toys" / "r.yaml"
    path.write_text("setup_script: prepare.sh\n" + FILES["srt1-lossless"].read_text(encoding="utf-8"), encoding="utf-8")
    one = import_file(path)
    assert one.lossless
    assert one.recipes[0].data["setup"] == [{"name": "prepare", "run": script}]
    (tmp_path / "configs" / "prepare.sh").write_text(f"{script}. /configs/more.sh\n", encoding="utf-8")
    one = import_file(path)
    assert one.lossless
    assert one.profile.data["container"]["mounts"] == [f"{tmp_path}/configs:/configs:ro"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (None, ["toy", "toy-pair", "toy_context_0", "toy_context_1"]),
        ("base", ["toy"]),
        ("override_pair", ["toy-pair"]),
        ("zip_override_context", ["toy", "toy_context_0", "toy_context_1"]),
        ("zip_override_context[1]", ["toy_context_1"]),
        ("*pair", ["toy-pair"]),
    ],
)
def test_selectors(selector: str | None, names: list[str]) -> None:
    assert [recipe.name for recipe in import_file(FILES["srt1-overrides"], selector).recipes] == names


def test_a_selector_that_selects_nothing_says_what_there_is() -> None:
    with pytest.raises(InputError) as refused:
        import_file(FILES["srt1-overrides"], "override_none")
    assert "override_pair; zip_override_context[0]" in refused.value.render()
    with pytest.raises(InputError, match="no variant"):
        import_file(FILES["srt1-lossless"], "base")


def test_one_combination_of_a_sweep() -> None:
    (recipe,) = import_file(FILES["srt1-sweep"], "tp=8,dp=1,ep=true").recipes
    assert recipe.data["roles"]["serve"]["parallel"] == {"tp": 8, "ep": True}
    assert recipe.data["benchmarks"][0]["concurrency"] == [1, 2, 4]


VALUES = [
    None,
    True,
    0,
    -1,
    10**30,
    0.5,
    "",
    "x",
    "{tp}",
    "null",
    [],
    [[]],
    {},
    {"a": {"b": [1]}},
    "two\nlines ",
    "1e999",
    '{"a": "\\u0000"}',
]


def mutated(data: Any, choose: random.Random) -> Any:
    """The data with one to three of its values deleted, doubled or of another type."""
    data = copy.deepcopy(data)
    for _ in range(choose.randint(1, 3)):
        holder: Any = data
        while True:
            key = choose.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            if isinstance(holder[key], (dict, list)) and holder[key] and choose.random() < 0.8:
                holder = holder[key]
                continue
            what = choose.random()
            if what < 0.2:
                del holder[key]
            elif what < 0.3 and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            else:
                holder[key] = copy.deepcopy(choose.choice(VALUES))
            break
        if not data:
            return data
    return data


@pytest.mark.parametrize("name", sorted(FILES))
def test_damaged_files_are_imported_or_refused(name: str) -> None:
    """Never another error: whatever stands where, it is read, named or refused."""
    good = read_document(FILES[name])
    choose = random.Random(name)
    for _ in range(150):
        document = Document(good.file, mutated(good.data, choose), dict(good.keys), dict(good.values))
        try:
            one = import_file(FILES[name], None, document)
        except InputError:
            continue
        for recipe in one.recipes[:2]:
            assert parse_yaml(output.recipe_text(one, recipe, whole=True), "r").problems == []
        lines(one.notes)


@pytest.mark.parametrize("name", sorted(FILES))
def test_files_that_are_cut_are_imported_or_refused(name: str, tmp_path: Path) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    path = tmp_path / "cut.yaml"
    for end in range(0, len(text), max(1, len(text) // 40)):
        path.write_text(text[:end], encoding="utf-8")
        try:
            import_file(path)
        except InputError:
            continue


def test_strings_within_json_become_what_vllm_would_make_of_them(tmp_path: Path) -> None:
    old = "decode: {tensor-parallel-size: 4, max-model-len: 2048}"
    document = '{"window_size": "32", "use_async": "False"}'
    new = f"""decode: {{tensor-parallel-size: 4, max-model-len: "2048", eplb-config: '{document}'}}"""
    text = FILES["srt1-lossless"].read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "r.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    (recipe,) = import_file(path).recipes
    assert recipe.data["roles"]["decode"]["args"] == {"eplb-config": {"window_size": 32, "use_async": False}}
    assert recipe.data["engine"]["args"] == {"max-model-len": 2048}


@pytest.mark.parametrize(
    ("connector", "lost"),
    [
        ("nixl", []),
        ("lmcache", ["backend.connector"]),
        ('{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}', []),
        ('{"kv_connector": "NixlConnector", "kv_buffer_size": 5}', ["backend.connector.kv_buffer_size"]),
    ],
)
def test_a_connector_of_the_engine_holds_for_roles_that_name_none(
    tmp_path: Path, connector: str, lost: list[str]
) -> None:
    text = (
        FILES["srt1-lossless"]
        .read_text(encoding="utf-8")
        .replace("  type: vllm\n", f"  type: vllm\n  connector: '{connector}'\n")
    )
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    one = import_file(path)
    assert [note.field for note in one.notes if note.kind == "lost"] == lost
    kv = one.recipes[0].data["kv_transfer"]
    assert kv["connector"] == "nixl"
    assert kv.get("load_failure_policy") == ("recompute" if "recompute" in connector else None)


@pytest.mark.parametrize(
    "section",
    [
        "zz_section: {a: {HF_TOKEN: hf_0123456789abcdefghij}}",
        "zz_section: [{a: [x, hf_0123456789abcdefghij]}]",
        "zz_section: {DB_PASSWORD: swordfish}",
    ],
)
def test_a_secret_anywhere_in_what_is_lost_is_not_repeated(tmp_path: Path, section: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{FILES['srt1-lossless'].read_text(encoding='utf-8')}\n{section}\n", encoding="utf-8")
    one = import_file(path)
    shown = "\n".join([*lines(one.notes), *(note.problem().render() for note in one.notes)])
    shown += "".join(output.recipe_text(one, recipe) for recipe in one.recipes)
    assert "zz_section" in shown
    assert "hf_0123" not in shown
    assert "swordfish" not in shown


_ROLES = {"prefill": "prefill", "decode": "decode", "agg": "aggregated"}


def folded(part: dict[str, Any]) -> dict[str, Any]:
    """A recipe of srt-slurm's first layout in its second, as ``srtctl migrate`` spells it."""
    part = copy.deepcopy(part)
    resources, backend = part.get("resources", {}), part.pop("backend", {})
    flags = backend.pop("vllm_config", {})
    for short, long in _ROLES.items():
        places = {
            "nodes": (resources, f"{short}_nodes"),
            "workers": (resources, f"{short}_workers"),
            "gpus": (resources, f"gpus_per_{short}"),
            "env": (backend, f"{long}_environment"),
            "args": (flags, long),
        }
        block = {new: place.pop(old) for new, (place, old) in places.items() if old in place}
        if block:
            part.setdefault("roles", {})[short] = block
    return {**part, "engine": backend} if backend else part


@pytest.mark.parametrize("name", [name for name in GOOD if name.startswith("srt1-")])
def test_both_layouts_of_srt_slurm_make_the_same_recipe(name: str) -> None:
    data = parse_yaml(FILES[name].read_text(encoding="utf-8"), name).data
    parts = {key: folded(value) if isinstance(value, dict) else value for key, value in data.items()}
    text = yaml.safe_dump({"schema": 2, **(parts if "base" in data else folded(data))}, sort_keys=False)
    first, second = imported(name), import_file(Path(f"{name}.yaml"), None, parse_yaml(text, f"{name}.yaml"))
    assert second.format == "srt-slurm, schema 2"
    assert "vllm_config" not in text
    assert [recipe.loaded.data for recipe in second.recipes] == [recipe.loaded.data for recipe in first.recipes]
    lost = [sorted(note.message for note in one.notes if note.kind == "lost") for one in (first, second)]
    assert lost[0] == lost[1]


@pytest.mark.parametrize(
    "engine",
    [
        "engine: vllm\n",
        "engine: {type: vllm}\n",
        "backend: {type: vllm}\n",
        "engine: vllm\nbackend: {set_cuda_visible_devices: true}\n",
        "",
    ],
)
def test_the_engine_is_found_wherever_schema_2_takes_it(tmp_path: Path, engine: str) -> None:
    text = "schema: 2\nname: r\nmodel: {path: m, container: 'vllm/vllm-openai:v0.32.0'}\n"
    text += "resources: {gpus_per_node: 8}\nfrontend: {enable_multiple_frontends: false}\n"
    own = "" if engine else "engine: vllm, "
    text += f"{engine}roles:\n  agg: {{{own}nodes: 1, workers: 1, gpus: 2, args: {{tensor-parallel-size: 2}}}}\n"
    path = tmp_path / "r.yaml"
    path.write_text(f"{text}benchmark: {{type: sa-bench, isl: 128, osl: 128, concurrencies: '4'}}\n", encoding="utf-8")
    one = import_file(path)
    assert one.lossless
    assert one.recipes[0].data["roles"]["serve"]["parallel"] == {"tp": 2}


def test_schema_2_takes_the_first_layout_too() -> None:
    text = f"schema: 2\n{FILES['srt1-lossless'].read_text(encoding='utf-8')}"
    one = import_file(Path("srt1-lossless.yaml"), None, parse_yaml(text, "srt1-lossless.yaml"))
    assert one.lossless
    assert one.recipes[0].loaded.data == imported("srt1-lossless").recipes[0].loaded.data


def scored(tmp_path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """The benchmark of an import, and what is said of it."""
    path = tmp_path / "scored.yaml"
    head, _, _ = FILES["srt1-lossless"].read_text(encoding="utf-8").partition("benchmark:")
    path.write_text(f"{head}benchmark: {text}\n", encoding="utf-8")
    one = import_file(path)
    return one.recipes[0].loaded.data["benchmarks"][0], lines(one.notes)


def test_accuracy_is_scored_by_lm_eval(tmp_path: Path) -> None:
    found, said = scored(tmp_path, "{type: gsm8k, num_examples: 200, num_threads: 64, num_shots: 8, top_k: 20}")
    assert (found["client"], found["name"], found["endpoint"], found["tasks"]) == (
        "lm-eval",
        "gsm8k",
        "chat",
        ["gsm8k"],
    )
    assert (found["limit"], found["concurrency"], found["num_fewshot"]) == (200, 64, 8)
    assert found["args"] == {"gen_kwargs": {"max_gen_toks": 16384, "until": [], "top_k": 20}}
    assert any("sglang's run_eval: near it, and not the same" in line for line in said)
    found, _ = scored(tmp_path, "{type: gsm8k}")
    assert (found["concurrency"], found["num_fewshot"]) == (512, 5)
    assert "limit" not in found


def test_a_score_of_repeats_is_one_of_single_answers(tmp_path: Path) -> None:
    found, said = scored(tmp_path, "{type: gpqa, max_tokens: 65536}")
    assert found["tasks"] == ["gpqa_diamond_cot_zeroshot"]
    assert found["args"]["gen_kwargs"]["max_gen_toks"] == 65536
    assert "num_fewshot" not in found
    assert any("8 by default" in line and "asked once" in line for line in said)
    found, said = scored(tmp_path, "{type: aime, aime_dataset: aime26, repeat: 4}")
    assert found["tasks"] == ["aime25"]
    assert any("lm-eval has aime24 and aime25" in line for line in said)


def test_their_lm_eval_is_told_in_variables(tmp_path: Path) -> None:
    env = "EVAL_CONC: '32', EVAL_LIMIT: '50', EVAL_TASKS_DIR: utils/evals/gpqa_diamond.yaml, FRAMEWORK: dynamo-vllm"
    found, said = scored(tmp_path, f"{{type: lm-eval, env: {{{env}, EVAL_PYTHON: python3.12}}}}")
    assert (found["tasks"], found["concurrency"], found["limit"]) == (["gpqa_diamond_cot_zeroshot"], 32, 50)
    assert found["args"]["gen_kwargs"] == {"max_gen_toks": 16384, "until": [], "temperature": 0.0, "top_p": 1.0}
    assert not any("lost" in line.lower() for line in said), said
    _, said = scored(tmp_path, "{type: lm-eval, env: {EVAL_TASKS_DIR: mine.yaml, VALIDATE_EVAL_SCORES: 'true'}}")
    assert any("`data` names a folder of your own" in line for line in said)
    assert any("`min`" in line for line in said)
