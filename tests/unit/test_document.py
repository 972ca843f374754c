"""YAML to data with places: what is read, what is refused and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_toolkit.document import Place, dump_yaml, parse_yaml, read_document
from recipe_toolkit.errors import InputError
from recipe_toolkit.faults import Fault
from recipe_toolkit.scalars import is_plain_string, resolve
from recipe_toolkit.text_file import MAX_BYTES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("n", "n"),
        ("~", None),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("04:00:00", "04:00:00"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("1.2.3", "1.2.3"),
        ("0.32.0", "0.32.0"),
        ("=", "="),
        ("-", "-"),
        (".", "."),
        ("1-00:00", "1-00:00"),
        ("8k", "8k"),
        ("٣", "٣"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, value: object) -> None:
    got = resolve(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1e999", "9" * 19, "9" * 5000, "0x" + "f" * 16])
def test_numbers_that_json_lacks_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        resolve(text)


def test_quoted_scalars_stay_strings() -> None:
    assert parse_yaml("a: '1'\nb: \"true\"\nc: |\n  2\nd: !!str 3", "f").data == {
        "a": "1",
        "b": "true",
        "c": "2\n",
        "d": "3",
    }


def test_places_of_keys_and_values() -> None:
    doc = parse_yaml("a:\n  b: [1, {c: 2}]\n'd e':   x\n", "f.yaml")
    assert doc.locate(()) == Place("f.yaml", 1, 1)
    assert doc.locate(("a", "b"), key=True) == Place("f.yaml", 2, 3)
    assert doc.locate(("a", "b")) == Place("f.yaml", 2, 6)
    assert doc.locate(("a", "b", 0)) == Place("f.yaml", 2, 7)
    assert doc.locate(("a", "b", 1, "c")) == Place("f.yaml", 2, 14)
    assert doc.locate(("d e",)) == Place("f.yaml", 3, 10)
    # What is not there is placed at the nearest thing above it.
    assert doc.locate(("a", "b", 1, "x", "y")) == Place("f.yaml", 2, 10)
    assert doc.locate(("a", "x")) == Place("f.yaml", 1, 1)


def test_a_missing_field_is_placed_at_the_mapping_that_lacks_it() -> None:
    doc = parse_yaml("x: 1\na:\n  b: 2\n", "f")
    problem = doc.problem(Fault(("a", "c"), "missing", absent=True))
    assert problem.render() == "f:2:1: a.c: missing"


def test_aliases_and_merge_keys_are_copies() -> None:
    doc = parse_yaml("a: &x {b: 1, c: [1]}\nd: {<<: *x, b: 2}\ne: *x\nf: {<<: [{b: 3}, *x]}\n", "f")
    assert doc.data == {
        "a": {"b": 1, "c": [1]},
        "d": {"b": 2, "c": [1]},
        "e": {"b": 1, "c": [1]},
        "f": {"b": 3, "c": [1]},
    }
    doc.data["e"]["c"].append(2)
    assert doc.data["a"]["c"] == doc.data["d"]["c"] == [1]
    assert doc.locate(("d", "c", 0)).line == 1
    assert doc.locate(("d", "b")) == Place("f", 2, 16)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3:1: key `a` stands twice; first in line 1"),
        ("a: {b: 1, b: 2}\n", "f:1:11: key `b` stands twice; first in line 1"),
        ("x: {1: a}\n", "f:1:5: key 1 is not a string\n  hint: put it in quotes"),
        ("true: a\n", "f:1:1: key true is not a string\n  hint: put it in quotes"),
        ("? [a]\n: b\n", "f:1:3: a key must be a string"),
        ("a: !x 1\n", "f:1:4: tag !x is not supported"),
        ("a: !!python/name:os.system x\n", "f:1:4: tag tag:yaml.org,2002:python/name:os.system is not supported"),
        ("a: !!set {b}\n", "f:1:4: tag tag:yaml.org,2002:set is not supported"),
        ("a: !!int x\n", "f:1:4: 'x' is not a YAML int"),
        ("a: !!float true\n", "f:1:4: 'true' is not a YAML float"),
        ("a: .nan\n", "f:1:4: .nan is not a finite number"),
        ("a:\n  - 1e400\n", "f:2:5: 1e400 is too large a number"),
        ("<<: 3\n", "f:1:5: <<: a merge key takes a mapping, or several"),
        ('a: "x\\0y"\n', "f:1:4: a string cannot hold '\\x00'"),
    ],
)
def test_faults_that_leave_the_rest_readable(text: str, problem: str) -> None:
    assert [item.render() for item in parse_yaml(text, "f").problems] == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "a: b: c\n",
            "f:1:5: not YAML: mapping values are not allowed in this context\n"
            "  hint: quote a value that holds ': ', and check the indentation",
        ),
        (
            "a:\n\tb: 1\n",
            "f:2:1: not YAML: found character that cannot start any token while scanning for the next token\n"
            "  hint: indent with spaces, not tabs; quote a value that begins with @, ` or %",
        ),
        (
            "a: 1\nb: 'x\nc: 2\n",
            "f:4:1: not YAML: found unexpected end of stream while scanning a quoted scalar that begins in line 2\n"
            "  hint: a quote or bracket is not closed",
        ),
        ("a: &x [*x]\n", "f:1:8: alias *x stands inside its own anchor"),
        ("a: &x {<<: *x}\n", "f:1:12: alias *x stands inside its own anchor"),
        ("a: *x\n", "f:1:4: no anchor &x stands before this alias"),
        ("a: 1\n---\nb: 2\n", "f:2:1: a second document begins here\n  hint: one file holds one document"),
        ("a: 1\nb: \x07\n", "f:2:4: character '\\x07' is not text"),
        ("a: \udcff\n", "f:1:4: character '\\udcff' is not text"),
    ],
)
def test_text_that_is_no_document(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f")
    assert caught.value.render() == problem


def test_an_empty_text_holds_null() -> None:
    assert parse_yaml("# nothing\n", "f").data is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("[" * 200_000, "exceeded maximum nesting depth|nested more than 50 deep"),
        ("- " * 5000, "exceeded maximum nesting depth|nested more than 50 deep"),
        ("[" + "1," * 100_001 + "]", "more than 100000 values"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"k{i}: &k{i} [{','.join([f'*k{i - 1}' if i else '*a'] * 10)}]\n" for i in range(12)),
            "more than 100000 values once aliases are followed",
        ),
        (
            "a: &a [x]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}]\n" if i else "k0: &k0 [*a]\n" for i in range(60)),
            "nested more than 50 deep, aliases followed",
        ),
    ],
)
def test_bombs_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "f")


def test_a_chain_of_merge_keys_costs_no_more_than_its_length() -> None:
    lines = ["a: &k0 {x: 1}"]
    lines += [f"m{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 10)}]}}" for i in range(1, 40)]
    assert parse_yaml("\n".join(lines), "f").data["m39"] == {"x": 1}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"a: 1\nb: \xff\n", "f:2:4: byte 0xff is not UTF-8 text\n  hint: save it as UTF-8"),
        (b"x" * (MAX_BYTES + 1), "f: larger than 1 MiB: not a recipe or profile"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, raw: bytes, problem: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_document(path, "f")
    assert caught.value.render() == problem


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: no such file or directory"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"cannot be read: is a directory"):
        read_document(tmp_path)
    with pytest.raises(InputError, match=r"not a file name"):
        read_document(Path("a\0b"))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(path).data == {"a": 1}


_UNFIT = "\x85\u2028\u2029" + "".join(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x7F]))
_TEXT = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters=_UNFIT, whitelist_characters="\t\n\r"),
    max_size=20,
)
_TRICKY = st.sampled_from(
    ["on", "1e3", "010", "0o7", "04:00:00", "1:30", "<<", "=", "~", "- x", "a: b", "#", "'", '"', ""]
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT
    | _TRICKY
)
_DATA = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT | _TRICKY, inner, max_size=4),
    max_leaves=20,
)


@given(_DATA)
def test_what_is_dumped_is_read_back(data: Any) -> None:
    doc = parse_yaml(dump_yaml(data), "f")
    assert not doc.problems
    assert doc.data == data


@given(st.text(max_size=20))
def test_plain_strings_are_read_as_written(text: str) -> None:
    if is_plain_string(text):
        assert resolve(text) == text


def test_dumping_is_stable_and_keeps_the_order() -> None:
    data = {"b": 1, "a": {"d": "1e3", "c": [True, None, "on", "04:00:00"]}}
    assert dump_yaml(data) == "b: 1\na:\n  d: '1e3'\n  c:\n  - true\n  - null\n  - 'on'\n  - 04:00:00\n"
