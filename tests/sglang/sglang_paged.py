"""SGLang's allocators on a machine without Triton: the paged one of older versions asks for it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

try:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator as TokenAllocator
except ImportError:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator as TokenAllocator

__all__ = ["PagedAllocator", "TokenAllocator"]


class LoopingPagedAllocator(PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """The same pages in the same order as the kernels give, by plain loops."""

    free_pages: Any

    def alloc_extend(
        self,
        prefix_lens: Any,
        prefix_lens_cpu: Any,
        seq_lens: Any,
        seq_lens_cpu: Any,
        last_loc: Any,
        extend_num_tokens: int,
        **_: Any,
    ) -> Any:
        spans = zip(prefix_lens_cpu.tolist(), seq_lens_cpu.tolist(), last_loc.tolist(), strict=True)
        slots = self._take(list(spans))
        assert slots is None or len(slots) == extend_num_tokens
        return slots

    def alloc_decode(self, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any, **_: Any) -> Any:
        ends = seq_lens_cpu.tolist()
        return self._take([(end - 1, end, last) for end, last in zip(ends, last_loc.tolist(), strict=True)])

    def _take(self, spans: list[tuple[int, int, int]]) -> Any:
        """Slots for positions [start, end) behind the slot `last`, request by request."""
        free = self.free_pages.tolist()
        taken = 0
        slots: list[int] = []
        for start, end, last in spans:
            for position in range(start, end):
                if position % self.page_size == 0:
                    if taken == len(free):
                        return None
                    last = free[taken] * self.page_size
                    taken += 1
                else:
                    last += 1
                slots.append(last)
        self.free_pages = self.free_pages[taken:]
        return torch.tensor(slots, dtype=torch.int64)


_runs_here = "use_triton_kernels" in inspect.getsource(PagedTokenToKVPoolAllocator)
PagedAllocator = PagedTokenToKVPoolAllocator if _runs_here else LoopingPagedAllocator
