"""Select paths with glob patterns."""
from .pattern import Pattern
from .selection import Selection, walk

__all__ = ["Pattern", "Selection", "walk"]
