from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_toolkit.sim import prompts


def test_the_tokenizer_is_small_and_knows_every_answer():
    files = sorted(prompts.TOKENIZER.iterdir())
    assert [file.name for file in files] == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sum(file.stat().st_size for file in files) < 100_000
    words = prompts.vocabulary()
    assert sorted(words.values()) == list(range(len(words)))
    assert all(f"w{number}" in words for number in range(prompts.ANSWER_WORDS))
    assert words[prompts.UNKNOWN] not in prompts.answer_ids(7, 0, 500)


def test_the_tokenizer_splits_as_the_engine_does():
    tokenizer = json.loads((prompts.TOKENIZER / "tokenizer.json").read_text())
    assert (tokenizer["model"]["type"], tokenizer["pre_tokenizer"]) == ("WordLevel", {"type": "WhitespaceSplit"})
    assert (tokenizer["normalizer"], tokenizer["post_processor"], tokenizer["decoder"]) == (None, None, None)
    assert [token["content"] for token in tokenizer["added_tokens"]] == [prompts.UNKNOWN, prompts.END]


def test_special_tokens_stand_alone():
    assert prompts.from_text("a<unk>b </s>c").words == ("a", "<unk>", "b", "</s>", "c")
    assert prompts.from_text(" \n\t ").words == ()


@given(st.lists(st.sampled_from(sorted(prompts.vocabulary())[:50]), min_size=1, max_size=40))
def test_ids_and_text_are_one_prompt(words):
    by_text = prompts.from_text("  ".join(words))
    assert prompts.from_ids(prompts.ids(by_text.words)) == by_text
    assert prompts.from_messages([{"role": "user", "content": word} for word in words]) == by_text


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_blocks_are_equal_as_far_as_prompts_are(one, two, size):
    hashes = [prompts.block_hashes(prompts.from_text(" ".join(map(str, words))), size) for words in (one, two)]
    common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    equal = next((i for i, (a, b) in enumerate(zip(*hashes, strict=False)) if a != b), min(map(len, hashes)))
    assert equal == common // size
    assert list(map(len, hashes)) == [len(one) // size, len(two) // size]


def test_answers_depend_on_the_prompt_and_on_nothing_else():
    said = {text: [prompts.answer_word(prompts.from_text(text).seed, n) for n in range(20)] for text in ("a b", "a c")}
    assert said["a b"] != said["a c"]
    assert said["a b"] == [prompts.answer_word(prompts.from_text("a\nb").seed, n) for n in range(20)]
    assert len(set(said["a b"])) > 10


@pytest.mark.parametrize("ids", [[-1], [10**9]])
def test_ids_outside_the_vocabulary_are_refused(ids):
    with pytest.raises(ValueError, match="out of vocabulary"):
        prompts.from_ids(ids)
