"""Tests of scripts/gpu_round.sh over programs that do nothing: what it refuses before anything runs, and what counts as
failed."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_round.sh"
PROGRAMS = ("cistern", "cistern_gpu_round", "cistern_tests_conformance", "cistern_tests_drivers",
            "cistern_tests_allocator")
FILES = ("libcistern_torch.so", "torch_events.cpp", "torch_round.py", "gpu_table.py")


@unittest.skipUnless(shutil.which("bash") and shutil.which("timeout"), "needs bash and timeout")
class GpuRound(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPT, self.root / "scripts")
        self.built = self.root / ".gpu"
        self.built.mkdir()
        for name in PROGRAMS:
            (self.built / name).write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
            (self.built / name).chmod(0o755)
        for name in FILES:
            (self.built / name).write_text("", encoding="utf-8")

    def run_round(self, steps, *folders):
        environment = dict(os.environ, CISTERN_ROUND=steps)
        return subprocess.run(["bash", str(self.root / "scripts" / "gpu_round.sh"), "run", *folders], capture_output=True,
                              text=True, env=environment, check=False)

    def test_the_steps_that_were_asked_for_run(self):
        done = self.run_round("info  pairs_2 fill")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines() if "exit 0" in line],
                         ["info", "pairs_2", "fill"])
        self.assertIn("0 steps failed", done.stdout)

    def test_a_step_that_is_none_is_refused(self):
        for name in ("nosuchstep", "info_1", "pairs_4", "info,fill"):
            done = self.run_round("info " + name)
            self.assertEqual(done.returncode, 2, name)
            self.assertIn(f'"{name}" is no step; expected some of: info conformance ', done.stderr)
            self.assertEqual(done.stdout, "")
        self.assertFalse((self.built / "out").exists())

    def test_a_folder_that_was_not_built_is_refused(self):
        for name in ("gpu_table.py", "cistern_tests_drivers", "cistern"):
            (self.built / name).unlink()
            done = self.run_round("")
            self.assertEqual(done.returncode, 2, name)
            self.assertEqual(done.stderr, f".gpu: no {name}; make the folder with: scripts/gpu_round.sh build .gpu\n")
            self.assertEqual(done.stdout, "")

    def test_without_a_command_the_usage_is_printed(self):
        for arguments in ([], ["nosuchcommand"]):
            for script, folder in (("scripts/gpu_round.sh", self.root), ("../scripts/gpu_round.sh", self.built),
                                   (str(self.root / "scripts" / "gpu_round.sh"), self.built)):
                done = subprocess.run(["bash", script, *arguments], capture_output=True, text=True, cwd=folder, check=False)
                self.assertEqual(done.returncode, 2, script)
                self.assertTrue(done.stderr.startswith("One round on a computer"), done.stderr)
                self.assertIn("scripts/gpu_round.sh run [DIR [OUT]]", done.stderr)
                self.assertNotIn("sed:", done.stderr)
                self.assertEqual(done.stdout, "")

    def test_what_fails_is_counted(self):
        (self.built / "cistern").write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
        (self.built / "gpu_table.py").write_text("raise SystemExit(1)\n", encoding="utf-8")
        done = self.run_round("info fill")
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 steps failed", done.stdout)
        self.assertRegex(done.stdout, r"table +failed")

    def test_a_step_whose_tests_were_all_skipped_is_counted(self):
        (self.built / "cistern_tests_conformance").write_text("#!/bin/sh\necho '[  PASSED  ] 0 tests.'\n", encoding="utf-8")
        done = self.run_round("info conformance")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "conformance +exit 77")
        self.assertIn("every test was skipped", done.stdout)
        self.assertIn("1 steps failed", done.stdout)

    def test_what_else_lies_in_the_folder_for_figures_stays(self):
        (self.root / "mine").mkdir()
        other = self.root / "mine" / "precious.json"
        other.write_text("{}", encoding="utf-8")
        (self.built / "gpu_table.py").write_text("import sys; print(*sys.argv[1:], sep='|')\n", encoding="utf-8")
        for _ in range(2):
            done = self.run_round("info", str(self.built), str(self.root / "mine"))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"{self.root}/mine/steps.json|{self.root}/mine/info.json|--native", done.stdout)
        self.assertEqual(other.read_text(encoding="utf-8"), "{}")
        self.assertEqual((self.root / "mine" / "steps.json").read_text(encoding="utf-8").count("\n"), 1)

    def test_folders_may_be_absolute(self):
        (self.built / "cistern").write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" >&2; exit 1\n', encoding="utf-8")
        for folder in (".gpu", str(self.built)):
            self.assertIn(f"{self.root}/.gpu/lib:", self.run_round("info", folder).stdout)

    def test_a_folder_that_cannot_be_made_is_refused(self):
        done = self.run_round("info", ".gpu", "/dev/null/out")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/dev/null", done.stderr)

    def test_a_step_that_could_not_run_is_counted(self):
        if shutil.which("compute-sanitizer"):
            self.skipTest("it can run here")
        done = self.run_round("memcheck")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "memcheck +did not run")


if __name__ == "__main__":
    unittest.main()
