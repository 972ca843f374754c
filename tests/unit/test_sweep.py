"""A sweep: which variants it has, what they are called, which share a run, and what is wrong with them."""

from __future__ import annotations

import re

import pytest

from recipe_support import GOOD
from recipe_toolkit.errors import InputError
from recipe_toolkit.recipe_loader import load_recipe
from recipe_toolkit.sweep.expand import variants
from recipe_toolkit.sweep.expression import Expression, ExpressionError
from recipe_toolkit.sweep.load import Findings, chosen, load_sweep
from recipe_toolkit.sweep.names import name_of_variant, value_labels

FIELDS = {("a",): 4, ("b", "c-d"): "text", ("e", 0, "f"): 2.5, ("none",): None, ("yes",): True}


def holds(text: str) -> bool:
    return Expression(text).holds(lambda path: FIELDS[path])


# --- conditions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 4", True),
        ("a != 4", False),
        ("1 < a <= 4", True),
        ("1 < a < 4", False),
        ("a * 2 + 1 == 9 and a // 3 == 1 and a % 3 == 1 and a / 8 == 0.5 and -a < +a", True),
        ("a > 9 or b['c-d'] == 'text'", True),
        ("not (a > 9)", True),
        ("a in [1, 4]", True),
        ("a not in (1, 4)", False),
        ("'ex' in b['c-d']", True),
        ("e[0].f > 2", True),
        ("none == null and yes == true and yes", True),
        # true is not 1, as it is for Python
        ("yes == 1", False),
        ("yes in [1]", False),
        ("'x' < 'y'", True),
        # the second part has no value, and is not asked for
        ("a == 4 or none > 3", True),
        ("a == 5 and none > 3", False),
        ("a ==\n  4", True),
    ],
)
def test_a_condition(text, expected):
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a ==", "is no expression"),
        ("", "is no expression"),
        ("a = 4", "is no expression"),
        ("len(a) > 1", "`len(a)` is not in the language"),
        ("__import__('os').system('true') == 0", "is not in the language"),
        ("a.__class__.__base__ == 1 and (lambda: 1)() == 1", "is not in the language"),
        ("[x for x in (1, 2)] == 1", "is not in the language"),
        ("a ** 9 > 1", "`a ** 9` is not in the language"),
        ("a is null", "is not in the language"),
        ("a if yes else a", "is not in the language"),
        ("f'{a}' == '4'", "is not in the language"),
        ("b'x' == a", "is not in the language"),
        ("1j == a", "is not in the language"),
        ("(x := 1) == 1", "is not in the language"),
        ("a[yes] == 1", "is not in the language"),
        ("a > 'x'", "4 and 'x' have no order"),
        ("none > 1", "null and 1 have no order"),
        ("a + yes > 1", "`yes` is true, not a number"),
        ("b['c-d'] * 99999 == 1", "is 'text', not a number"),
        ("a", "`a` is 4, not true or false"),
        ("a and yes", "`a` is 4, not true or false"),
        ("a in a", "`a` is 4, which holds nothing"),
        ("a / 0 > 1", "division by zero"),
        ("not " * 50 + "yes", "nested more than 40 deep"),
        ("(" * 900 + "1" + ")" * 900, "is no expression"),
        ("a == 1 or " * 300 + "yes", "is longer than 2000 characters"),
        ("1" * 1999 + " * " + "a > 1", "is longer than 2000"),
        ("'\\d' == 'x' and a > 'y' or a > 'z'", "have no order"),
    ],
)
def test_what_is_no_condition(text, message):
    with pytest.raises(ExpressionError, match=re.escape(message)):
        holds(text)


def test_fields_of_a_condition():
    assert set(Expression("a.b['c-d'][0] > 1 and not x or true == null").fields()) == {("a", "b", "c-d", 0), ("x",)}


# --- names


def test_labels_are_safe_and_differ():
    values = [1, 2.5, True, None, "a/b", "a b", [1, [2]], {"kind": "exit", "code": 7}, "", "-", "x" * 99, "x" * 98]
    labels = value_labels(values)
    assert labels[:4] == ["1", "2.5", "true", "none"]
    assert labels[6:8] == ["1-2", "kind-exit-code-7"]
    assert len(set(labels)) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", label) and len(label) <= 40 for label in labels)


def test_a_label_does_not_depend_on_the_values_beside_it():
    assert value_labels([8, "x" * 99])[1] == value_labels(["x" * 99])[0]


def test_names_of_recipes_fit():
    assert name_of_variant("base", "tp-8") == "base-tp-8"
    long = {name_of_variant("b" * 80, f"{'v' * 58}-{index}") for index in range(3)}
    assert len(long) == 3
    assert all(len(name) <= 80 for name in long)


# --- which variants


def loaded(tmp_path, sweep: str, *sets: str, text: str = GOOD):
    path = tmp_path / "r.yaml"
    path.write_text(f"{text}sweep:\n{sweep}", encoding="utf-8")
    return load_recipe(path, sets)


def ids(tmp_path, sweep: str) -> list[str]:
    return [variant.id for variant in variants(loaded(tmp_path, sweep).document)]


def refused(tmp_path, sweep: str, *sets: str) -> list[str]:
    """What is said of a sweep, and of its variants, without the path and the hints."""
    findings = Findings()
    try:
        base = loaded(tmp_path, sweep, *sets)
        meant = chosen(base, None)
        load_sweep(base, meant, findings)
        found = [item for item in findings.problems(len(meant)) if item.refuses]
    except InputError as error:
        found = list(error.problems)
    return [item.render().partition("\n")[0].replace(f"{tmp_path}/", "") for item in found]


def test_every_combination_in_the_order_of_writing(tmp_path):
    sweep = "  grid: {roles.decode.parallel.tp: [2, 4], roles.decode.args.max-num-seqs: [16, 32]}\n"
    sweep += "  zip: [{roles.prefill.instances: [1, 2], roles.prefill.parallel.tp: [4, 2]}]\n"
    sweep += "  variants: {plain: {}, eager: {engine.args.enforce-eager: true}}\n"
    found = ids(tmp_path, sweep)
    assert len(found) == len(set(found)) == 16
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", item) for item in found)


def test_fields_that_end_alike_have_more_of_their_path(tmp_path):
    sweep = "  grid: {roles.decode.args.max-num-seqs: [16], roles.prefill.args.max-num-seqs: [8]}\n"
    sweep += "  variants: {plain: {time_limit: '1:00:00'}}\n"
    (variant,) = variants(loaded(tmp_path, sweep).document)
    assert list(variant.columns) == ["decode.args.max-num-seqs", "prefill.args.max-num-seqs", "variant"]
    assert list(variant.values) == ["roles.decode.args.max-num-seqs", "roles.prefill.args.max-num-seqs", "time_limit"]


def test_ids(tmp_path):
    sweep = "  grid: {roles.decode.parallel.dp: [1, 2]}\n  variants: {plain: {}, none: {slo: null}}\n"
    assert ids(tmp_path, sweep.replace("slo: null", "time_limit: '1:00:00'")) == [
        "dp-1_plain",
        "dp-1_none",
        "dp-2_plain",
        "dp-2_none",
    ]


def test_a_condition_prunes_and_knows_defaults(tmp_path):
    grid = "  grid: {roles.decode.parallel.dp: [1, 2], roles.prefill.instances: [1, 2, 3]}\n"
    # pp is nowhere written, and is 1; prefill's tp is the recipe's
    where = "  where: roles.prefill.instances * roles.prefill.parallel.tp * roles.prefill.parallel.pp <= 4\n"
    assert ids(tmp_path, grid + where) == [
        "dp-1_instances-1",
        "dp-1_instances-2",
        "dp-2_instances-1",
        "dp-2_instances-2",
    ]
    where = "  where: roles.decode.args['max-num-batched-tokens'] == null and benchmarks[0].isl == 1024 and "
    assert ids(tmp_path, grid + where + "roles.decode.parallel.dp != 1 and roles.prefill.instances in [3]\n") == [
        "dp-2_instances-3"
    ]


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("  where: 1 == 1\n", "r.yaml:21:1: sweep: has nothing to vary"),
        ("  grid: {roles.decode.parallel.dp: []}\n", 'r.yaml:22:36: sweep.grid."roles.decode.parallel.dp": is empty'),
        ("  grid: {roles.decode.parallel.dp: 2}\n", 'sweep.grid."roles.decode.parallel.dp": 2 is not a list'),
        ("  gird: {a: [1]}\n", "r.yaml:22:3: sweep.gird: unknown key"),
        ("  variants: {'a b': {}}\n", "'a b' is not a name"),
        ("  grid: {benchmarks.7.isl: [1]}\n", "benchmarks has 2 items"),
        ("  grid: {benchmarks.isl: [1]}\n", "benchmarks is a list"),
        ("  grid: {'a=b': [1]}\n", "does not go on with the path"),
        ("  grid: {name: [a, b]}\n", "name cannot be swept"),
        ("  grid: {sweep.where: ['1 == 1']}\n", "a sweep cannot sweep itself"),
        (
            "  grid: {time_limit: ['1:00:00', '1:00:00']}\n",
            "r.yaml:22:34: sweep.grid.time_limit.1: time-limit-1-00-00 stands twice",
        ),
        (
            "  grid: {roles.decode.parallel.dp: [1, 2]}\n  variants: {a: {roles.decode.parallel: {tp: 4}}}\n",
            "roles.decode.parallel.dp and roles.decode.parallel: set twice in one variant",
        ),
        (
            "  zip: [{time_limit: ['1:00:00', '2:00:00'], roles.decode.parallel.dp: [1]}]\n",
            "r.yaml:22:9: sweep.zip.0: lists of a group are of one length, and these are of time_limit 2, "
            "roles.decode.parallel.dp 1",
        ),
        (
            "  grid: {time_limit: ['1:00:00']}\n  where: roles.decod.instances > 1\n",
            "r.yaml:23:10: sweep.where: no field roles.decod",
        ),
        (
            "  grid: {time_limit: ['1:00:00']}\n  where: 'time_limit > 3'\n",
            "and 3 have no order, in time-limit-1-00-00",
        ),
        ("  grid: {time_limit: ['1:00:00']}\n  where: 1 > 2\n", "sweep.where: holds for none of the 1 combinations"),
        ("  grid: {time_limit: ['1:00:00']}\n  where: exit()\n", "`exit()` is not in the language of conditions"),
        (
            "  grid: {roles.decode.parallel.dp: [2]}\n  where: roles.decode.parallel == 1\n",
            "roles.decode.parallel holds fields that are swept",
        ),
    ],
)
def test_what_is_no_sweep(tmp_path, sweep, said):
    assert said in "\n".join(refused(tmp_path, sweep))


def test_too_many(tmp_path):
    numbers = list(range(1, 102))
    grid = f"  grid: {{benchmarks.0.isl: {numbers}, benchmarks.0.osl: {numbers}}}\n"
    assert "10201 combinations are more than 10000" in refused(tmp_path, grid)[0]
    grid = f"  grid: {{benchmarks.0.isl: {numbers[:40]}, benchmarks.0.osl: {numbers[:40]}}}\n"
    assert "1600 variants are more than 1000" in refused(tmp_path, grid)[0]
    assert len(ids(tmp_path, f"{grid}  where: benchmarks[0].isl == benchmarks[0].osl\n")) == 40


# --- each variant is a recipe


def test_every_problem_of_every_variant_once_where_its_value_stands(tmp_path):
    sweep = "  grid:\n    roles.decode.parallel.dp: [2, x]\n    roles.decode.args.max-num-sqs: [1, 2]\n"
    sweep += "  variants:\n    plain: {}\n    gone: {slo.tpot_mean_ms: null}\n"
    assert refused(tmp_path, sweep) == [
        "r.yaml:23:35: roles.decode.parallel.dp: 'x' is not an integer (in dp-x_max-num-sqs-1_plain and 3 more)",
        "r.yaml:24:37: roles.decode.args.max-num-sqs: vLLM 0.32.0 has no flag --max-num-sqs "
        "(in dp-2_max-num-sqs-1_plain and 3 more)",
        "r.yaml:24:40: roles.decode.args.max-num-sqs: vLLM 0.32.0 has no flag --max-num-sqs "
        "(in dp-2_max-num-sqs-2_plain and 3 more)",
        "r.yaml:27:30: slo.tpot_mean_ms: null deletes a key, and there is none here "
        "(in dp-2_max-num-sqs-1_gone and 3 more)",
    ]


def test_a_null_in_a_sweep_deletes_in_the_variant_and_not_in_the_base(tmp_path):
    (tmp_path / "base.yaml").write_text(GOOD)
    text = "schema: 1\nname: over\nextends: base.yaml\n"
    base = loaded(tmp_path, "  variants: {plain: {}, free: {roles.decode.args.max-num-seqs: null}}\n", text=text)
    runs = load_sweep(base, chosen(base, None), Findings())
    assert [dict(run.recipe.recipe.roles[1].args) for run in runs] == [{"max-num-seqs": 16}, {}]
    assert [run.recipe.recipe.name for run in runs] == ["over-plain", "over-free"]
    assert "sweep" not in runs[0].recipe.data


def test_a_sweep_replaces_that_of_its_base(tmp_path):
    (tmp_path / "base.yaml").write_text(GOOD + "sweep: {grid: {time_limit: ['1:00:00']}}\n")
    text = "schema: 1\nname: over\nextends: base.yaml\n"
    sweep = "  variants: {plain: {}}\n"
    assert [item.id for item in variants(loaded(tmp_path, sweep, text=text).document)] == ["plain"]


def test_a_pattern_chooses_and_a_wrong_one_is_told_the_ids(tmp_path):
    base = loaded(tmp_path, "  grid: {roles.prefill.instances: [1, 2, 12]}\n")
    assert [variant.id for variant in chosen(base, "*-1*")] == ["instances-1", "instances-12"]
    with pytest.raises(InputError, match=r"no variant matches 'x'\n.*instances-1, instances-2"):
        chosen(base, "x")


# --- those that share a deployment


def shared(tmp_path, sweep: str):
    base = loaded(tmp_path, sweep)
    findings = Findings()
    runs = load_sweep(base, chosen(base, None), findings)
    assert not [item for item in findings.problems(1) if item.refuses]
    return runs


def test_variants_that_differ_in_benchmarks_alone_are_one_run(tmp_path):
    sweep = "  grid: {roles.prefill.instances: [1, 2], benchmarks.0.isl: [512, 1024],"
    runs = shared(tmp_path, f"{sweep} benchmarks.0.concurrency: [1, [8, 1]]}}\n")
    assert [(run.id, len(run.variants)) for run in runs] == [("instances-1", 4), ("instances-2", 4)]
    # The command is the same measurement in all, and each load stands once.
    assert [(item.name, item.concurrency) for item in runs[0].recipe.recipe.benchmarks] == [
        ("aiperf-512x128", (1, 8)),
        ("command", ()),
        ("aiperf-1024x128", (1, 8)),
    ]
    assert runs[0].points == ((0, 2), (1, 0, 2), (3, 2), (4, 3, 2))


def test_benchmarks_of_one_name_that_differ_in_more_get_the_values(tmp_path):
    (run,) = shared(tmp_path, "  grid: {benchmarks.0.requests_per_concurrency: [10, 20]}\n")
    names = [item.name for item in run.recipe.recipe.benchmarks]
    assert names == ["aiperf-1024x128", "command", "aiperf-1024x128_requests-per-concurrency-20"]
    assert run.points == ((0, 1, 2), (3, 4, 2))


def test_the_same_benchmark_twice_in_one_variant_stays_twice(tmp_path):
    sweep = "  variants:\n    a: {benchmarks.1.timeout: 10m}\n    b: {benchmarks.1.timeout: 20m}\n"
    (run,) = shared(tmp_path, sweep)
    assert [item.timeout_s for item in run.recipe.recipe.benchmarks if item.client == "command"] == [600, 1200]
    assert [item.name for item in run.recipe.recipe.benchmarks] == ["aiperf-1024x128", "command", "command_timeout-20m"]


def test_an_accuracy_client_is_one_point_whatever_its_concurrency(tmp_path):
    text = GOOD.replace(
        "client: command, command: [my-bench, --quick], timeout: 30m", "client: lm-eval, tasks: [gsm8k]"
    )
    base = loaded(tmp_path, "  grid: {benchmarks.1.concurrency: [4, 8]}\n", text=text)
    (run,) = load_sweep(base, chosen(base, None), Findings())
    assert [item.name for item in run.recipe.recipe.benchmarks][1:] == ["lm-eval", "lm-eval_concurrency-8"]
    assert run.points == ((0, 1, 2), (0, 1, 3))


def test_named_variants_that_share_a_run_are_called_by_the_first(tmp_path):
    sweep = "  variants: {short: {}, long: {benchmarks.0.isl: 2048}, eager: {engine.args.enforce-eager: true}}\n"
    assert [(run.id, [item.id for item in run.variants]) for run in shared(tmp_path, sweep)] == [
        ("short", ["short", "long"]),
        ("eager", ["eager"]),
    ]


def test_a_digest_is_of_the_variant_alone(tmp_path):
    """So that what was measured together counts when it is chosen alone, and a changed recipe does not."""
    sweep = "  grid: {benchmarks.0.isl: [512, 1024]}\n"
    (both,) = shared(tmp_path, sweep)
    base = loaded(tmp_path, sweep)
    (alone,) = load_sweep(base, chosen(base, "isl-1024"), Findings())
    assert both.digests[1:] == alone.digests
    (other,) = load_sweep(loaded(tmp_path, sweep, "time_limit=1:00:00"), chosen(base, "isl-1024"), Findings())
    assert other.digests != alone.digests
