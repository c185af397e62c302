import unittest

from globtrail import Pattern


class PatternTest(unittest.TestCase):
    def yes(self, pattern, *paths):
        for path in paths:
            self.assertTrue(Pattern(pattern).matches(path), (pattern, path))

    def no(self, pattern, *paths):
        for path in paths:
            self.assertFalse(Pattern(pattern).matches(path), (pattern, path))

    def test_star_stays_in_its_segment(self):
        self.yes("src/*.py", "src/a.py", "src/.py")
        self.no("src/*.py", "src/a/b.py", "a.py", "src/a.pyc")

    def test_question_mark(self):
        self.yes("a?c", "abc")
        self.no("a?c", "ac", "a/c")

    def test_double_star_spans_segments(self):
        self.yes("src/**/*.py", "src/a/b.py", "src/a/b/c.py")
        self.no("src/**/*.py", "lib/a/b.py", "src/a/b.txt")

    def test_trailing_double_star(self):
        self.yes("docs/**", "docs/a", "docs/a/b")
        self.no("docs/**", "docs", "docs2/a")

    def test_class(self):
        self.yes("v[0-9]", "v3")
        self.no("v[0-9]", "v", "va", "v10")

    def test_negated_class(self):
        self.yes("[!_]*", "abc")
        self.no("[!_]*", "_abc", "")

    def test_escape(self):
        self.yes("a\\*b", "a*b")
        self.no("a\\*b", "axb")

    def test_dot_is_a_dot(self):
        self.no("a.c", "abc")

    def test_empty_pattern(self):
        with self.assertRaises(ValueError):
            Pattern("")
