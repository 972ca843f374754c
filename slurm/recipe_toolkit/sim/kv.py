"""The KV cache of one DP rank: blocks in use, blocks held for a decode side, and cached prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class KvCache:
    """Counts blocks; which block holds what is not simulated.

    Blocks of finished requests are free and yet stay cached, as in vLLM, until as many others have
    been cached after them. Answers are not cached, only prompts.
    """

    def __init__(
        self, tokens: int, block_size: int, caching: bool = True, leaks: Callable[[], bool] = lambda: False
    ) -> None:
        self.block_size = block_size
        self.blocks = tokens // block_size
        self.used = 0
        self._caching = caching
        self._leaks = leaks
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def usage(self) -> float:
        """Share of the blocks that are not free, 0 to 1."""
        return self.used / self.blocks

    def need(self, tokens: int) -> int:
        """Blocks that ``tokens`` tokens fill or begin."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> bool:
        """Take blocks; False, and nothing taken, if there are not so many free ones."""
        if self.used + blocks > self.blocks:
            return False
        self.used += blocks
        return True

    def give_back(self, blocks: int) -> None:
        """Free blocks; while the cache leaks they are lost."""
        if not self._leaks():
            self.used -= blocks

    def hits(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Prompt tokens that are cached from the beginning on, in full blocks.

        The last token is always computed, since its output is needed (vLLM: ``max_cache_hit_length``).
        """
        limit = (prompt_tokens - 1) // self.block_size
        found = 0
        for block in hashes[:limit]:
            if block not in self._cached:
                break
            self._cached.move_to_end(block)
            found += 1
        return found * self.block_size

    def store(self, hashes: Sequence[int]) -> None:
        """Cache the prompt's full blocks."""
        if not self._caching:
            return
        for block in hashes:
            self._cached[block] = None
            self._cached.move_to_end(block)
        while len(self._cached) > self.blocks:
            self._cached.popitem(last=False)

    @property
    def caching(self) -> bool:
        """Whether prefixes are cached."""
        return self._caching
