"""A client of a few lines: URL FOLDER CONCURRENCY REQUESTS OSL. It streams, and writes result.json."""

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

url, folder, concurrency, requests, osl = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
host = urlsplit(url).netloc
left = list(range(requests))
seen: list[tuple[float, float]] = []
failed: list[str] = []


def user(number: int) -> None:
    connection = http.client.HTTPConnection(host, timeout=60)
    while left:
        try:
            prompt = f"{left.pop()} of user {number} wants words of its own"
        except IndexError:
            break
        body = {"model": "tiny", "prompt": prompt, "max_tokens": osl, "ignore_eos": True, "stream": True}
        begun = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            failed.append(answer.read().decode())
            continue
        at = [time.monotonic() for line in answer if line.startswith(b"data: {")]
        seen.append((at[0] - begun, (at[-1] - at[0]) / (osl - 1)))


begun = time.monotonic()
users = [threading.Thread(target=user, args=(number,)) for number in range(concurrency)]
for one in users:
    one.start()
for one in users:
    one.join()
took = time.monotonic() - begun


def stat(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {"mean": sum(values) / len(values), **{key: ordered[int(q * (len(ordered) - 1))] for key, q in at.items()}}


result = {"requests": {"ok": len(seen), "failed": len(failed)}, "duration_s": took, "total_tps": len(seen) * osl / took}
if seen:
    result |= {"ttft_ms": stat([1000 * one for one, _ in seen]), "tpot_ms": stat([1000 * one for _, one in seen])}
(Path(folder) / "result.json").write_text(json.dumps(result))
print(result)
