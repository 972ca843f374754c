"""The example connector: KV of a prompt's full blocks as a file in a folder that both sides share.

As in vLLM, no ``kv_transfer_params`` are needed: a prompt whose file is there is loaded, whoever
wrote it; the last token is always computed, and what is over a full block too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_toolkit.sim import transfer
from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.messages import Submission
from recipe_toolkit.sim.options import Options
from recipe_toolkit.sim.transfer import Ledger, Pull, Pulled


class KvFiles:
    """One DP rank's view of the folder ``shared_storage_path``."""

    def __init__(self, config: Mapping[str, Any], options: Options, block: int) -> None:
        extra = config.get("kv_connector_extra_config") or {}
        self.recompute = transfer.policy(config)
        self._folder = Path(extra.get("shared_storage_path", "/tmp"))
        self._writes = config.get("kv_role") != "kv_consumer"
        self._options = options
        self._block = block

    async def open(self, ledger: Ledger) -> None:
        """Make the folder. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Nothing to stop."""

    def plan(self, request: Submission, cached: int) -> Pull | None:
        """A pull if there is a file for more tokens than are cached here."""
        path, tokens = self._file(request)
        if path is None or tokens <= cached or not path.exists():
            return None
        return Pull(tokens - cached, {"path": path})

    async def pull(self, request: Submission, pull: Pull) -> Pulled:
        """Wait as long as the bytes take."""
        duration = self._options.seconds("kv_transfer_ms")
        duration += pull.tokens * self._options["kv_bytes_per_token"] / self._options["kv_bytes_per_s"]
        await asyncio.sleep(duration)
        return Pulled(pull.tokens)

    def computed(self, request: Submission) -> None:
        """Write the file."""
        path, _ = self._file(request)
        if path is not None and self._writes:
            try:
                path.touch()
            except OSError as error:
                log(f"could not save KV to {path}: {error}")

    def hold(self, request: Submission, blocks: int) -> dict[str, Any] | None:
        """Nothing is held: the file stays."""
        return None

    def forget(self, request: Submission) -> None:
        """Nothing to free."""

    def _file(self, request: Submission) -> tuple[Path | None, int]:
        blocks = (request.prompt_tokens - 1) // self._block
        if blocks == 0 or len(request.hashes) < blocks:
            return None, 0
        return self._folder / f"{request.hashes[blocks - 1]:016x}.kv", blocks * self._block
