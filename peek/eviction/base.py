"""What every eviction policy is: a score of how much the waiting queue needs a cached node."""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class EvictionPolicy:
    """Scores a cached node or block from the demand that the queue has for it."""

    def score(self, peak: i64, levels: i64, idle_s: float) -> float:
        """Lowest goes first; 0.0 means that no waiting request needs it.  O(1), pure.

        Args:
            peak: max over the node's ancestors in the pending tree (itself included) of
                pending_count x depth, in requests x symbols (Eq. 2); 0 without demand.
            levels: how many of these ancestors at least two waiting requests share.
            idle_s: seconds since the engine last used the node; 0.0 where it does not tell.
        """
        # Not an abstract method: a compiled call of one that a subclass forgot ends the process.
        raise NotImplementedError(f"{type(self).__name__} does not say how to score a block")
