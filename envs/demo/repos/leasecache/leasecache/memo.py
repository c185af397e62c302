"""A decorator that keeps the results of a function in a LeaseCache."""
import functools

from .cache import LeaseCache
from .clock import system_clock

_MISSING = object()


def _call_key(args, kwargs):
    return args, tuple(sorted(kwargs.items()))


def memoize(capacity, ttl=None, clock=system_clock):
    """Remember results for `ttl` seconds; arguments must be hashable."""

    def decorate(function):
        cache = LeaseCache(capacity, ttl, clock)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            key = _call_key(args, kwargs)
            result = cache.get(key, _MISSING)
            if result is _MISSING:
                result = function(*args, **kwargs)
                cache.set(key, result)
            return result

        wrapper.cache = cache
        return wrapper

    return decorate
