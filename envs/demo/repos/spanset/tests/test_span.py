import unittest

from spanset import Span, SpanError


class SpanTest(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(Span.parse("3..7"), Span(3, 7))
        self.assertEqual(Span.parse(" ..7"), Span(None, 7))
        self.assertEqual(Span.parse("3.. "), Span(3, None))

    def test_parse_rejects_nonsense(self):
        for text in ("", "3", "a..b", "7..3", "3..3"):
            with self.assertRaises(SpanError):
                Span.parse(text)

    def test_membership_is_half_open(self):
        span = Span(3, 7)
        self.assertIn(3, span)
        self.assertIn(6, span)
        self.assertNotIn(7, span)

    def test_str(self):
        self.assertEqual(str(Span(3, 7)), "3..7")
        self.assertEqual(str(Span(None, 7)), "..7")

    def test_length(self):
        self.assertEqual(len(Span(-2, 3)), 5)
        with self.assertRaises(SpanError):
            len(Span(3, None))
