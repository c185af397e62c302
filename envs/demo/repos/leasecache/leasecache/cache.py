"""The cache itself."""
from collections import OrderedDict

from .clock import system_clock

_UNSET = object()


class _Entry:
    __slots__ = ("value", "deadline")

    def __init__(self, value, deadline):
        self.value = value
        self.deadline = deadline

    def expired(self, now):
        return self.deadline is not None and now >= self.deadline


class LeaseCache:
    """At most `capacity` entries, each living at most `ttl` seconds."""

    def __init__(self, capacity, ttl=None, clock=system_clock):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        if ttl is not None and ttl <= 0:
            raise ValueError("ttl must be positive")
        self.capacity = capacity
        self.ttl = ttl
        self._clock = clock
        # Least recently used first.
        self._entries = OrderedDict()
        self._counts = {"hits": 0, "misses": 0, "evictions": 0, "expirations": 0}

    # -- reading ---------------------------------------------------------------

    def get(self, key, default=None):
        """The value of `key`, or `default` if there is none (any more)."""
        entry = self._live(key)
        if entry is None:
            self._counts["misses"] += 1
            return default
        self._counts["hits"] += 1
        self._entries.move_to_end(key)
        return entry.value

    def peek(self, key, default=None):
        """Like get, but neither counts nor changes the order of use."""
        entry = self._entries.get(key)
        if entry is None or entry.expired(self._clock()):
            return default
        return entry.value

    def __contains__(self, key):
        return self.peek(key, _UNSET) is not _UNSET

    def __len__(self):
        return len(self._entries)

    def keys(self):
        """Keys of the live entries, least recently used first."""
        now = self._clock()
        return [k for k, e in self._entries.items() if not e.expired(now)]

    # -- writing ---------------------------------------------------------------

    def set(self, key, value, ttl=_UNSET):
        """Store `value`, with a lease of its own if `ttl` is given."""
        if ttl is _UNSET:
            ttl = self.ttl
        if ttl is not None and ttl <= 0:
            raise ValueError("ttl must be positive")
        deadline = None if ttl is None else self._clock() + ttl
        if len(self._entries) >= self.capacity:
            self._entries.popitem(last=False)
            self._counts["evictions"] += 1
        self._entries[key] = _Entry(value, deadline)

    def delete(self, key):
        """Remove `key`; True if a live entry was removed."""
        entry = self._live(key)
        if entry is None:
            return False
        del self._entries[key]
        return True

    def clear(self):
        self._entries.clear()

    def purge(self):
        """Drop all expired entries and return how many there were."""
        now = self._clock()
        gone = [k for k, e in self._entries.items() if e.expired(now)]
        for key in gone:
            del self._entries[key]
        self._counts["expirations"] += len(gone)
        return len(gone)

    # -- bookkeeping -----------------------------------------------------------

    def stats(self):
        return dict(self._counts, size=len(self))

    def _live(self, key):
        """The entry of `key`; an expired one is dropped on the way."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expired(self._clock()):
            del self._entries[key]
            self._counts["expirations"] += 1
            return None
        return entry
