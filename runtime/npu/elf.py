"""What is known of the ELF that aiecc has aiebu write, before it may become an artifact.

It begins as every ELF does, and names its platform where others name their operating system: 69 for AIE2P
(XRT src/runtime_src/core/include/xrt/experimental/xrt_elf.h, `platform`; aiebu src/cpp/elf/aie2/
aie2_blob_elfwriter.h writes it). XRT opens nothing else. More is not checked: what is inside is XRT's to say.
"""

from __future__ import annotations

from pathlib import Path

MAGIC = b"\x7fELF"
PLATFORM_BYTE = 7
"""e_ident[EI_OSABI]."""
AIE2P = 69
IDENT_BYTES = 16


def objection(path: Path) -> str:
    """Why XRT would not open this file as a program of an NPU2; nothing where no reason is known."""
    with path.open("rb") as file:
        ident = file.read(IDENT_BYTES)
    if not ident:
        return "it is empty"
    if not ident.startswith(MAGIC):
        return f"it is no ELF: it begins with {ident[:4].hex(' ')}"
    if len(ident) < IDENT_BYTES:
        return f"it ends after {len(ident)} bytes"
    if ident[PLATFORM_BYTE] != AIE2P:
        return f"its platform (e_ident[EI_OSABI]) is {ident[PLATFORM_BYTE]}, and AIE2P's is {AIE2P}"
    return ""
