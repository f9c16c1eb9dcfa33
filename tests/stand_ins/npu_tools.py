"""Stand-ins for aircc, aiecc, aiebu-asm and Peano's clang++: they compile nothing and prove plumbing only.

Each checks what upstream's own would check of its command line, files and PATH, starts the next one as
upstream does, writes down its call, and leaves files of the right names. `Tools` installs them in a folder
and reads what they wrote down; `behave` makes one of them fail.

This file is also what they run: `npu_tools.py TOOL ARGUMENT...`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ELF = b"\x7fELF\x01\x01\x01\x45\x10" + bytes(7) + b"stand-in"
"""What a program of AIE2P begins with, and nothing more: OS/ABI 0x45 (XRT xrt_elf.h)."""

AIRCC_VALUES = {"--device", "--output-format", "--elf-name", "--tmpdir", "--peano"}
"""Options of aircc.cpp whose value is the next word. The others follow, and may have a value after `=`."""
AIRCC_OTHERS = {
    "--no-xchesscc",
    "--no-xbridge",
    "--stack-size",
    "--air-runtime-loop-tiling-sizes",
    "--omit-ping-pong-transform",
    "--omit-while-true-loop",
    "--bf16-emulation",
}
AIECC_OPTIONS = {
    "--tmpdir",
    "--get-full-elf",
    "--expand-load-pdis",
    "--full-elf-name",
    "--peano",
    "--bf16-emulation",
}


class Tools:
    """The stand-ins in `root`: bin/ with aircc, aiecc and aiebu-asm, peano/bin/clang++, mlir-aie/include."""

    def __init__(self, root: Path) -> None:
        self.root, self._log, self._plan = root, root / "calls.jsonl", root / "plan.json"
        self._plans: dict[str, dict[str, object]] = {}
        for place in ("bin/aircc", "bin/aiecc", "bin/aiebu-asm", "peano/bin/clang++"):
            self._install(root / place)
        header = root / "mlir-aie" / "include" / "aie_api" / "aie.hpp"
        header.parent.mkdir(parents=True)
        header.write_text("// the stand-in compiles nothing\n")

    def _install(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        words = (sys.executable, "-S", "-E", __file__, place.name)
        place.write_text(f'#!/bin/sh\nSTAND_INS="{self.root}" exec {" ".join(words)} "$@"\n')
        place.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """What a caller sets so that the stand-ins are found."""
        return {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "PEANO_INSTALL_DIR": f"{self.root}/peano",
            "MLIR_AIE_INSTALL_DIR": f"{self.root}/mlir-aie",
        }

    def behave(self, tool: str, **plan: object) -> None:
        """Make a tool fail: `say` this and `exit` so, die of a `signal`, `hang`, `write` another ELF."""
        self._plans[tool] = plan
        self._plan.write_text(json.dumps(self._plans))

    def calls(self, tool: str | None = None) -> list[dict[str, object]]:
        """Each call in order: tool, arguments, folder, environment, and the files that lay there."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [call for line in lines if (call := json.loads(line))["tool"] == (tool or call["tool"])]


def main() -> None:
    tool, arguments, root = sys.argv[1], sys.argv[2:], Path(os.environ["STAND_INS"])
    if arguments == ["--version"]:
        print(f"{tool} stand-in 1.0")
        return
    _write_down(tool, arguments, root)
    plans = json.loads((root / "plan.json").read_text()) if (root / "plan.json").exists() else {}
    plan = plans.get(tool, {})
    print(f"output of {tool}")
    sys.stdout.flush()
    if "say" in plan:
        sys.exit(_say(plan))
    if "signal" in plan:
        os.kill(os.getpid(), plan["signal"])
    if "hang" in plan:
        _hang(Path(plan["hang"]))
    {"clang++": _clang, "aircc": _aircc, "aiecc": _aiecc, "aiebu-asm": _aiebu}[tool](arguments, plan)


def _write_down(tool: str, arguments: list[str], root: Path) -> None:
    here = Path.cwd()
    files = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    kept = ("PATH", "PEANO_INSTALL_DIR", "TMPDIR")
    environment = {name: os.environ.get(name) for name in kept}
    call = {
        "tool": tool,
        "arguments": arguments,
        "cwd": str(here),
        "environment": environment,
        "files": files,
    }
    with (root / "calls.jsonl").open("a") as log:
        log.write(json.dumps(call) + "\n")


def _say(plan: dict[str, object]) -> int:
    sys.stderr.write(f"{plan['say']}\n")
    if "partial" in plan:
        Path(str(plan["partial"])).write_bytes(ELF[:6])
    return int(str(plan.get("exit", 0)))


def _hang(note: Path) -> None:
    """Start a process and wait for it, for ever: both must go."""
    child = subprocess.Popen(["sleep", "600"])
    note.write_text(f"{os.getpid()} {child.pid}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def _clang(arguments: list[str], plan: dict[str, object]) -> None:
    source, output = arguments[arguments.index("-c") + 1], Path(arguments[arguments.index("-o") + 1])
    for wanted in ("--target=aie2p-none-unknown-elf", "-std=c++20"):
        assert wanted in arguments, wanted
    include = next(word[2:] for word in arguments if word.startswith("-I"))
    assert (Path(include) / "aie_api" / "aie.hpp").is_file(), include
    assert Path(source).is_file(), source
    output.write_text(" ".join(word for word in arguments if word != str(output)))


def _aircc(arguments: list[str], plan: dict[str, object]) -> None:
    values, positional = _parse(arguments, AIRCC_VALUES, AIRCC_OTHERS, "aircc")
    text = Path(positional[0]).read_text()
    for object_file in re.findall(r'link_with = "([^"]+)"', text):
        for folder in (Path(), Path(values["--tmpdir"])):
            assert (folder / object_file).is_file(), f"{object_file} is not in {folder.resolve()}"
    if shutil.which("aiecc") is None:
        sys.exit("Error: could not find aiecc in PATH")
    lowered = Path(values["--tmpdir"]) / f"npu.{positional[0]}"
    lowered.write_text("the stand-in lowers nothing\n")
    peano = [f"--peano={values['--peano']}", "-O", "3", "-j", "0"]
    made = [f"--tmpdir={values['--tmpdir']}", "--get-full-elf", "--expand-load-pdis"]
    command = ["aiecc", *made, f"--full-elf-name={values['--elf-name']}", *peano, str(lowered)]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        sys.exit(f"Error running command: {shutil.which('aiecc')}")


def _aiecc(arguments: list[str], plan: dict[str, object]) -> None:
    values, _ = _parse(arguments, {"-O", "-j"}, AIECC_OPTIONS, "aiecc")
    if shutil.which("aiebu-asm") is None:
        sys.exit("aiecc: ShellCommand: tool 'aiebu-asm' not found in search paths or PATH")
    command = [
        "aiebu-asm",
        "-t",
        "aie2_config",
        "-j",
        "full_elf_config.json",
        "-o",
        values["--full-elf-name"],
    ]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"aiecc: '{shutil.which('aiebu-asm')}' failed: ")


def _aiebu(arguments: list[str], plan: dict[str, object]) -> None:
    if plan.get("write") != "nothing":
        written = bytes.fromhex(str(plan["write"])) if "write" in plan else ELF
        Path(arguments[arguments.index("-o") + 1]).write_bytes(written)


def _parse(
    words: list[str], valued: set[str], others: set[str], tool: str
) -> tuple[dict[str, str], list[str]]:
    """Values by option, and what is no option; ends as LLVM's command lines do for an option it lacks."""
    values: dict[str, str] = {}
    positional, rest = [], iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name in valued:
            values[name] = value or next(rest)
        elif name in others:
            values[name] = value
        elif name.startswith("-"):
            sys.exit(f"{tool}: Unknown command line argument '{word}'.  Try: '{tool} --help'")
        else:
            positional.append(word)
    return values, positional


if __name__ == "__main__":
    main()
