"""Sets of integers made of half-open spans."""
from .span import Span, SpanError
from .spanset import SpanSet

__all__ = ["Span", "SpanError", "SpanSet"]
