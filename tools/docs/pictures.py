"""The pictures of the pages, as SVG: `python tools/docs/pictures.py` writes them to docs/pictures.

Nothing but text and rectangles, so that a change of a picture is a change that one can read. A test holds
the files to this script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
INK, PAPER, LINE = "#22303c", "#ffffff", "#90a4ae"
BLUE, TEAL, AMBER, ROSE, GREY = "#d6e4f0", "#d0ece7", "#fdebd0", "#f6d5d8", "#eceff1"


class Picture:
    """Shapes on a sheet of width x height."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str = GREY, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" '
            f'stroke="{LINE}"{dash}/>'
        )

    def text(
        self, x: float, y: float, words: str, size: int = 13, anchor: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{INK}"{weight}>'
            f"{escape(words)}</text>"
        )

    def label(
        self, x: float, y: float, w: float, h: float, words: str, fill: str = GREY, size: int = 13
    ) -> None:
        """A box with one line of text in its middle, or several, separated by line ends."""
        self.box(x, y, w, h, fill)
        lines = words.split("\n")
        top = y + h / 2 - (len(lines) - 1) * size * 0.62 + size * 0.36
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + number * size * 1.24, line, size, "middle")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.4" '
            'marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
        )
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" font-family="sans-serif">',
                f"<title>{escape(self.title)}</title>",
                head,
                f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
                *self.parts,
                "</svg>\n",
            )
        )


def layers() -> Picture:
    """Which room stands on which."""
    floors: tuple[tuple[str, tuple[str, ...]], ...] = (
        (BLUE, ("board: doctor, comparison", "serve: HTTP, pages", "verify: gate, diagnosis")),
        (BLUE, ("cli: commands", "llama32_1b: demo and synthetic models")),
        (TEAL, ("engine: model families, KV pages, scheduler, sampling",)),
        (TEAL, ("runtime: KernelCache, toolchains, buffer objects",)),
        (AMBER, ("multi_launch_builder: stitcher, programs", "kernel_builder: DSL, kernels")),
        (AMBER, ("virtual_npu: runs AIR on the CPU", "kernels_cc: C++ for the cores")),
        (ROSE, ("device: what NPU2 is, static check", "air_dialect: AIR in xDSL")),
        (ROSE, ("common: errors, store, folders, knobs, compiler, processes",)),
    )
    made = Picture(720, 40 + 58 * len(floors), "The rooms of Aerie: each imports only rooms below it")
    for floor, (fill, rooms) in enumerate(floors):
        width = (680 - 10 * (len(rooms) - 1)) / len(rooms)
        for place, (name, what) in enumerate(each.split(": ") for each in rooms):
            x, y = 20 + place * (width + 10), 20 + 58 * floor
            made.box(x, y, width, 48, fill)
            made.text(x + width / 2, y + 20, name, 14, "middle", bold=True)
            made.text(x + width / 2, y + 38, what, 12, "middle")
    return made


def prompt() -> Picture:
    """One prompt's way: what the host does above, what the device does below."""
    made = Picture(760, 330, "One prompt's way: from text to tokens and back")
    made.text(20, 30, "host", bold=True)
    made.text(20, 190, "device", bold=True)
    made.box(14, 170, 732, 146, PAPER, dashed=True)
    host = ("chat template\ntokenizer", "planner\nembeddings", "last row\nRMSNorm", "sampler", "detokenizer")
    for place, words in enumerate(host):
        made.label(20 + place * 148, 44, 124, 54, words, BLUE)
    for place in (0, 3):
        made.arrow((144 + place * 148, 71), (166 + place * 148, 71))
    programs = ("rms_gemms_rope", "attention", "o_ffn")
    for place, words in enumerate(programs):
        made.label(96 + place * 130, 206, 116, 40, words, TEAL)
    made.arrow((212, 226), (224, 226))
    made.arrow((342, 226), (354, 226))
    made.text(400, 300, "prefill: once per layer, for n tokens at a time", 12)
    made.label(520, 206, 124, 40, "lm_head", TEAL)
    made.arrow((230, 98), (154, 204))
    made.arrow((414, 204), (386, 100))
    made.arrow((400, 98), (560, 204))
    made.arrow((590, 204), (530, 100))
    made.label(140, 282, 244, 26, "KV cache, in pages of 64 positions", AMBER, 12)
    made.arrow((270, 282), (283, 248))
    made.text(606, 116, "a token goes back:", 12)
    made.text(606, 132, "decode repeats this", 12)
    made.text(606, 148, "for one row", 12)
    made.arrow((526, 98), (526, 136), (260, 136), (240, 100))
    return made


def gemm() -> Picture:
    """The schedule of a GEMM: tiles in L3, L2 and L1, and the order of K."""
    made = Picture(760, 400, "The tile schedule of a GEMM: L3 to L2 to L1, K from left to right")
    made.text(20, 30, "L3: host memory", bold=True)
    made.box(20, 44, 150, 100, GREY)
    made.text(95, 164, "A: rows x K", 12, "middle")
    for place in range(4):
        made.box(26 + place * 36, 50, 32, 30, BLUE if place < 1 else PAPER)
    made.box(20, 190, 150, 100, GREY)
    made.text(20, 310, "B: (n, k), as Hugging Face stores it", 12)
    for place in range(4):
        made.box(26 + place * 36, 196, 32, 30, TEAL if place < 1 else PAPER)
    made.text(250, 30, "L2: memtiles", bold=True)
    made.label(250, 60, 130, 50, "tile of A\nall rows of cores", BLUE, 12)
    made.label(250, 206, 130, 50, "tile of B\nall columns of cores", TEAL, 12)
    made.arrow((60, 64), (210, 64), (248, 80))
    made.arrow((60, 210), (210, 210), (248, 226))
    made.text(470, 30, "L1: 8 x 4 cores", bold=True)
    for column in range(8):
        for row in range(4):
            made.box(470 + column * 34, 44 + row * 34, 30, 30, AMBER)
    made.arrow((380, 84), (468, 84))
    made.arrow((380, 230), (430, 230), (430, 150), (468, 150))
    made.text(470, 200, "a core: for each piece of K", bold=True)
    steps = (
        ("get a piece of A and of B", GREY),
        ("turn 8x8 blocks of B", GREY),
        ("sums += A x B, in 8x8x8 blocks", AMBER),
    )
    for place, (words, fill) in enumerate(steps):
        made.label(470, 212 + place * 36, 268, 30, words, fill, 12)
    made.arrow((745, 294), (754, 294), (754, 226), (742, 226))
    made.label(470, 330, 268, 30, "K is done: round once to bf16, to L3", ROSE, 12)
    made.arrow((604, 314), (604, 328))
    made.text(20, 350, "The sums stay in the core until K is done. Their order depends on K", 12)
    made.text(20, 368, "alone, so a row has the same bits in a GEMM of any number of rows.", 12)
    return made


def kv_pages() -> Picture:
    """Two requests with one beginning, in a pool of pages, and as attention sees them."""
    made = Picture(760, 400, "KV pages: two requests share their first pages")
    made.text(20, 30, "requests", bold=True)
    rows = (("A", (1, 2, 3), "system prompt, question 1"), ("B", (1, 2, 5), "system prompt, question 2"))
    for number, (name, pages, what) in enumerate(rows):
        y = 44 + number * 62
        made.text(20, y + 22, f"{name}: {what}", 12)
        for place, page in enumerate(pages):
            fill = TEAL if page in (1, 2) else (BLUE if name == "A" else AMBER)
            made.label(250 + place * 84, y, 78, 34, f"page {page}", fill, 12)
    made.text(520, 66, "64 positions each; a full page has", 12)
    made.text(520, 82, "the hash of its tokens and of all", 12)
    made.text(520, 98, "tokens before it", 12)
    made.text(20, 200, "pool on the host", bold=True)
    for page in range(8):
        fill = {1: TEAL, 2: TEAL, 3: BLUE, 5: AMBER}.get(page, PAPER)
        words = f"page {page}" if fill != PAPER else "free"
        made.label(20 + page * 90, 214, 82, 34, words, fill, 12)
    made.text(20, 362, "cache on the device, for one engine step", bold=True)
    for place, (page, fill) in enumerate(
        ((1, TEAL), (2, TEAL), (3, BLUE), (0, PAPER), (1, TEAL), (2, TEAL), (5, AMBER), (0, PAPER))
    ):
        made.label(20 + place * 90, 304, 82, 34, f"page {page}" if page else "masked", fill, 12)
    made.text(
        20,
        382,
        "Each request begins at a multiple of 256 positions: its tiles fall to the cores as they do alone.",
        12,
    )
    made.arrow((108, 250), (70, 302))
    made.arrow((290, 250), (240, 302))
    made.arrow((470, 250), (598, 302))
    return made


PICTURES: Mapping[str, Callable[[], Picture]] = {
    "layers.svg": layers,
    "prompt.svg": prompt,
    "gemm.svg": gemm,
    "kv-pages.svg": kv_pages,
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg())


if __name__ == "__main__":
    main()
