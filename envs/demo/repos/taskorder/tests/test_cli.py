import io
import os
import tempfile
import unittest

from taskorder.__main__ import main


class CommandLineTest(unittest.TestCase):
    def run_plan(self, text, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            out, err = io.StringIO(), io.StringIO()
            code = main([path, *options], out, err)
            return code, out.getvalue().split(), err.getvalue()

    def test_order(self):
        self.assertEqual(self.run_plan("a: b\nb:\n"), (0, ["b", "a"], ""))

    def test_only(self):
        code, names, _ = self.run_plan("a: b\nb:\nc:\n", "--only", "c")
        self.assertEqual((code, names), (0, ["c"]))

    def test_error(self):
        code, names, err = self.run_plan("a: x\n")
        self.assertEqual((code, names), (2, []))
        self.assertEqual(err, "taskorder: unknown task 'x', needed by 'a'\n")
