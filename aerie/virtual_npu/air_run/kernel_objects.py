"""The commands `clang++`, `clang`, `xchesscc_wrapper` and `ld.lld -r` for kernels: an object holds where its
source is.

The object is a text of JSON that `aerie.device.external_kernels` reads: the sources, each with the options -D
and -I that it was compiled with. Linking puts the sources of several objects into one. The virtual NPU
compiles the sources when it builds a program that links the object. This file runs by itself, without the
packages around it.
"""

import json
import os
import sys

MARK = "aerie kernel objects"
ALWAYS = ("-include", "aie_kernels/aie_kernel_utils.h")
"""Newer versions of the AIE API have the loop hints of this header themselves."""
AIE2 = ("-D__AIEARCH__=20", "-D__AIE_ARCH__=20")
"""What the compiler defines for npu1's cores."""


def main(words: list[str]) -> int:
    """Write the object. Returns the exit status."""
    if "--version" in words:
        print("clang version 20.0.0 (the virtual NPU's: objects hold where their source is)")
        return 0
    if "-r" in words:
        return _link(words)
    source, output, flags = None, None, list(ALWAYS)
    rest = iter(words)
    for word in rest:
        if word == "-o":
            output = next(rest, None)
        elif word in ("-D", "-I"):
            flags.append(_flag(word, next(rest, "")))
        elif word == "aie2" or word.startswith("--target=aie2-"):
            flags += AIE2
        elif word[:2] in ("-D", "-I"):
            flags.append(_flag(word[:2], word[2:]))
        elif word.endswith((".cc", ".cpp", ".c", ".cxx")):
            source = os.path.abspath(word)
    if source is None or not os.path.isfile(source):
        print(f"error: no source of a kernel in: {' '.join(words)}", file=sys.stderr)
        return 1
    output = output or os.path.splitext(os.path.basename(source))[0] + ".o"
    return _write(output, [{"source": source, "flags": flags}])


def _link(words: list[str]) -> int:
    """Write one object of the sources of several."""
    output = words[words.index("-o") + 1] if "-o" in words[:-1] else "a.out"
    parts = []
    for word in words:
        if word.endswith(".o") and word != output:
            try:
                with open(word) as file:
                    fields = json.load(file)
            except (OSError, ValueError):
                fields = None
            if not isinstance(fields, dict) or fields.get("kind") != MARK:
                print(f"error: {word} is no object that the virtual NPU's compiler wrote", file=sys.stderr)
                return 1
            parts += fields["objects"]
    return _write(output, parts)


def _write(output: str, parts: list[dict[str, object]]) -> int:
    with open(output, "w") as file:
        json.dump({"kind": MARK, "objects": parts}, file)
    return 0


def _flag(option: str, value: str) -> str:
    """An option with its value; folders become absolute."""
    return option + (os.path.abspath(value) if option == "-I" else value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
