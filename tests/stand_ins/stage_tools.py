"""Stand-ins for air-opt, aircc, aie-opt and aie-translate: they lower nothing and prove plumbing only.

Each writes down its call and leaves a file of the right name; `behave` makes one of them fail at a stage. The
module they all write has two devices with one core each and one without.

This file is also what they run: `stage_tools.py TOOL ARGUMENT...`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("air-opt", "aircc", "aie-opt", "aie-translate")

MODULE = """module {
  aie.device(npu2) @first {
    %core = aie.core(%tile) {
  }
  aie.device(npu2) @"second.one" {
    %core = aie.core(%tile) {
  }
  aie.device(npu2) {
    aie.runtime_sequence @main() {
}
"""

HELP = """OPTIONS:
  --pass-pipeline - a pipeline
      --arith-expand                          -   Legalize
        --include-bf16                        - Enable
      --canonicalize                          -   Canonicalize
      --air-to-aie                            -   Lower
        --device=<string>                     - Device
        --stack-size=<uint>                   - Stack
"""


class StageTools:
    """The stand-ins of these names in `root`/bin."""

    def __init__(self, root: Path, names: tuple[str, ...] = NAMES) -> None:
        self.root, self._plans = root, dict[str, dict[str, object]]()
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        for name in names:
            words = (sys.executable, "-S", "-E", __file__, name)
            (self.bin / name).write_text(f'#!/bin/sh\nSTAND_INS="{root}" exec {" ".join(words)} "$@"\n')
            (self.bin / name).chmod(0o755)

    @property
    def path(self) -> str:
        """PATH on which they are found, and no real ones."""
        return f"{self.bin}:/usr/bin:/bin"

    def behave(self, tool: str, where: str = "", **plan: object) -> None:
        """Make a tool fail whose command line has `where` in it: `say` and `exit`, `hang`, `write` nothing,
        or a `text`; aircc ends after the text of the kind `until`, or places a text with an `edit`."""
        self._plans[tool] = {"where": where, **plan}
        (self.root / "plan.json").write_text(json.dumps(self._plans))

    def calls(self, tool: str = "") -> list[list[str]]:
        """The words of every call, the tool first; of one tool."""
        log = self.root / "calls.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [call for line in lines if (call := json.loads(line))[0] == (tool or call[0])]


def main() -> None:
    tool, arguments, root = sys.argv[1], sys.argv[2:], Path(os.environ["STAND_INS"])
    if arguments == ["--version"]:
        print(f"{tool}\n  LLVM version 0.stand-in")
        return
    if arguments == ["--help"]:
        print(HELP)
        return
    with (root / "calls.jsonl").open("a") as log:
        log.write(json.dumps([tool, *arguments]) + "\n")
    plans = json.loads((root / "plan.json").read_text()) if (root / "plan.json").exists() else {}
    plan = plans.get(tool, {})
    if not any(plan.get("where", "") in word for word in arguments):
        plan = {}
    if "hang" in plan:
        child = subprocess.Popen(["sleep", "600"])
        Path(plan["hang"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    if tool == "aircc":
        code = _aircc(arguments, plan)
        if "say" not in plan:
            sys.exit(code)
    elif "say" not in plan and "write" not in plan:
        output = arguments[arguments.index("-o") + 1]
        words = "--aie-npu-to-binary" in arguments
        Path(output).write_text("06040100\n00000108\n" if words else plan.get("text", MODULE))
    if "say" in plan:
        sys.stderr.write(f"{plan['say']}\n")
        sys.exit(plan.get("exit", 1))


def _aircc(arguments: list[str], plan: dict[str, Any]) -> int:
    """Writes the texts of its stages, then starts aiecc, which must be the one that does nothing."""
    folder, text = Path(arguments[arguments.index("--tmpdir") + 1]), arguments[0]
    assert Path(text).is_file(), text
    aiecc = shutil.which("aiecc")
    if aiecc is None:
        sys.exit("Error: could not find aiecc in PATH")
    for kind in ("placed", "aie", "npu"):
        if plan.get("until") == "nothing":
            return 0
        source = Path(text).read_text().replace(*plan.get("edit", ("", "")))
        written = source if kind == "placed" else MODULE
        (folder / f"{kind}.{text}").write_text(written)
        if plan.get("until") == kind:
            return 0
    return subprocess.run([aiecc, "--get-full-elf"], check=False).returncode


if __name__ == "__main__":
    main()
