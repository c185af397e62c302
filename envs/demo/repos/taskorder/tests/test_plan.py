import unittest

from taskorder import PlanError, parse_plan


class PlanTest(unittest.TestCase):
    def test_lines(self):
        text = "# plan\n\na: b c  # why\nb:\nc : b b\n"
        self.assertEqual(parse_plan(text), {"a": ["b", "c"], "b": [], "c": ["b"]})

    def test_no_colon(self):
        with self.assertRaisesRegex(PlanError, "line 2"):
            parse_plan("a:\nb\n")

    def test_declared_twice(self):
        with self.assertRaisesRegex(PlanError, "line 2: task 'a' is declared twice"):
            parse_plan("a:\na: b\n")

    def test_bad_name(self):
        with self.assertRaises(PlanError):
            parse_plan("a: b,c\n")
