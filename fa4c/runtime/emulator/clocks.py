"""Vector clocks of lanes, and the set of asynchronous operations known to be complete.

Every lane of a cluster has a counter that grows at each of its releases. A clock says, for each lane, how far its accesses are
ordered before the owner (`g`), how far its generic writes are visible to the asynchronous proxy (`a`), and which asynchronous
operations are complete (`bits`: bit 2n operation n has read its sources, bit 2n+1 it has written). `ext` holds the same two
vectors for lanes of other clusters, learnt through global memory. Clocks are values: nothing changes one in place.
"""

import numpy as np


class Clock:
    __slots__ = ("g", "a", "bits", "ext", "home")

    def __init__(self, g, a, bits, ext, home):
        self.g, self.a, self.bits, self.ext, self.home = g, a, bits, ext, home

    def join(self, other):
        """The least clock that knows what both know."""
        if other is None or other is self:
            return self
        if other.home == self.home:
            g = self.g if other.g is self.g else np.maximum(self.g, other.g)
            a = self.a if other.a is self.a else np.maximum(self.a, other.a)
            bits, ext = self.bits | other.bits, _join_ext(self.ext, other.ext, self.home)
            if bits == other.bits and ext is other.ext and (g == other.g).all() and (a == other.a).all():
                return other  # lanes that come from a barrier share its clock
            return Clock(g, a, bits, ext, self.home)
        foreign = dict(other.ext or {})
        foreign[other.home] = (other.g, other.a)
        mine = foreign.pop(self.home, None)
        g, a = self.g, self.a
        if mine is not None:
            g, a = np.maximum(g, mine[0]), np.maximum(a, mine[1])
        return Clock(g, a, self.bits | other.bits, _join_ext(self.ext, foreign, self.home), self.home)

    def with_bits(self, bits):
        """The same clock, also knowing some asynchronous operations complete."""
        return self if self.bits & bits == bits else Clock(self.g, self.a, self.bits | bits, self.ext, self.home)

    def seen(self, home, lanes, visible_to_async):
        """The counters known for a slice of lanes of a cluster."""
        if home == self.home:
            return (self.a if visible_to_async else self.g)[lanes]
        pair = self.ext.get(home) if self.ext else None
        return 0 if pair is None else pair[1 if visible_to_async else 0][lanes]

    def knows(self, bit):
        return self.bits >> bit & 1


def _join_ext(x, y, home):
    if not y:
        return x
    if not x:
        return {k: v for k, v in y.items() if k != home} if home in y else y
    out = dict(x)
    for k, v in y.items():
        if k == home:
            continue
        old = out.get(k)
        out[k] = v if old is None else (np.maximum(old[0], v[0]), np.maximum(old[1], v[1]))
    return out


def join_all(clocks):
    """Join of several clocks, None for none."""
    out = None
    for c in clocks:
        out = c if out is None else out.join(c)
    return out
