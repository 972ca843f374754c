"""The documents of the task, from the file beside this one, wherever the folder lies."""

import json
from pathlib import Path

import datasets


def load(**_):
    lines = (Path(__file__).parent / "sums.jsonl").read_text(encoding="utf-8").splitlines()
    return {"test": datasets.Dataset.from_list([json.loads(line) for line in lines])}
