import unittest

from taskorder import CycleError, UnknownTaskError, order


class OrderTest(unittest.TestCase):
    def test_dependencies_come_first(self):
        plan = {"build": ["fetch", "configure"], "configure": ["fetch"], "fetch": []}
        self.assertEqual(order(plan), ["fetch", "configure", "build"])

    def test_order_of_the_plan_is_kept(self):
        plan = {"z": [], "a": ["m"], "k": [], "m": []}
        self.assertEqual(order(plan), ["z", "m", "a", "k"])

    def test_order_of_the_line_is_kept(self):
        plan = {"a": ["d", "c", "b"], "b": [], "c": [], "d": []}
        self.assertEqual(order(plan), ["d", "c", "b", "a"])

    def test_diamond(self):
        plan = {"top": ["l", "r"], "l": ["base"], "r": ["base"], "base": []}
        self.assertEqual(order(plan), ["base", "l", "r", "top"])

    def test_only(self):
        plan = {"a": ["b"], "b": [], "c": ["b"], "d": []}
        self.assertEqual(order(plan, ["c"]), ["b", "c"])

    def test_unknown_dependency(self):
        with self.assertRaises(UnknownTaskError) as caught:
            order({"a": ["x"]})
        self.assertEqual(str(caught.exception), "unknown task 'x', needed by 'a'")

    def test_unknown_only(self):
        with self.assertRaisesRegex(UnknownTaskError, "unknown task 'x'$"):
            order({"a": []}, ["x"])

    def test_cycle(self):
        with self.assertRaises(CycleError) as caught:
            order({"a": ["b"], "b": ["a"]})
        self.assertEqual(str(caught.exception), "dependency cycle: a -> b -> a")
