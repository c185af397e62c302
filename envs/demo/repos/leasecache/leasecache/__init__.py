"""A bounded cache whose entries expire."""
from .cache import LeaseCache
from .clock import ManualClock
from .memo import memoize

__all__ = ["LeaseCache", "ManualClock", "memoize"]
__version__ = "0.4.1"
