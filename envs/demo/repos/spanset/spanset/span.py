"""A single half-open span of integers; None stands for a missing end."""


class SpanError(ValueError):
    """A span that cannot be."""


class Span:
    __slots__ = ("start", "end")

    def __init__(self, start=None, end=None):
        if start is not None and end is not None and start >= end:
            raise SpanError("empty span: %s..%s" % (start, end))
        self.start = start
        self.end = end

    @classmethod
    def parse(cls, text):
        head, dots, tail = text.strip().partition("..")
        if not dots:
            raise SpanError("not a span: %r" % text)
        try:
            start = int(head) if head.strip() else None
            end = int(tail) if tail.strip() else None
        except ValueError:
            raise SpanError("not a span: %r" % text) from None
        return cls(start, end)

    def __contains__(self, number):
        if self.start is not None and number < self.start:
            return False
        return self.end is None or number < self.end

    def bounded(self):
        return self.start is not None and self.end is not None

    def __len__(self):
        if not self.bounded():
            raise SpanError("%s has no length" % self)
        return self.end - self.start

    def __eq__(self, other):
        if not isinstance(other, Span):
            return NotImplemented
        return (self.start, self.end) == (other.start, other.end)

    def __hash__(self):
        return hash((self.start, self.end))

    def __str__(self):
        return "%s..%s" % (self.start or "", self.end or "")

    def __repr__(self):
        return "Span(%r, %r)" % (self.start, self.end)
