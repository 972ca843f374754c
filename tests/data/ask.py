"""A benchmark client that asks fixed prompts at temperature 0 and keeps the answers' tokens."""

import json
import os
import urllib.request
from pathlib import Path

PROMPTS = [f"number {n} " + "the quick brown fox jumps over a lazy dog in San Francisco " * (4 + n) for n in range(4)]


def ask(prompt: str) -> list[int]:
    body = {
        "model": os.environ["RECIPE_MODEL"],
        "prompt": prompt,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        os.environ["RECIPE_URL"] + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        tokens: list[int] = json.load(reply)["choices"][0]["token_ids"]
    return tokens


answers = {prompt: ask(prompt) for prompt in PROMPTS}
(Path(os.environ["RECIPE_ARTIFACTS"]) / "answers.json").write_text(json.dumps(answers))
print(f"{len(answers)} answers")
