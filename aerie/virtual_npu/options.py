"""The options of a build and of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from aerie.common import knobs
from aerie.virtual_npu.errors import OptionError

NUMERICS = ("exact", "bfp16")
ROUNDINGS = ("conv_even", "floor")
RACES = ("error", "note")
MAX_SECONDS = 10**9
_SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g1",
)
STAGES = ("parsed", "inlined", "rewritten")
"""The IR of a program on its way to C++: as parsed; `inlined`, with one function per entry; `rewritten`, with
`vnpu` operations around what the passes recognised."""


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build.

    checks: check every access, transfer and dependency at run time, and explain errors.
    numerics: `exact` (bf16 products are exact in f32) or `bfp16` (bf16 matrix products in block floats).
    rounding: how f32 becomes bf16: `conv_even` (nearest, ties to even) or `floor` (towards minus infinity).
    sanitize: build with AddressSanitizer and UndefinedBehaviorSanitizer.
    fast: let whole matrix products be recognised (`is_fast` says when), and bf16 multiplied in pairs.
    elements: how many elements an argument `memref<*xT>` has, for each argument of functions and sequences.
    stop_lines: lines of the text before whose operations a run can stop (`RunOptions.stops`); needs checks.
    """

    checks: bool = False
    numerics: str = NUMERICS[0]
    rounding: str = ROUNDINGS[0]
    sanitize: bool = False
    fast: bool = True
    elements: tuple[int, ...] = ()
    stop_lines: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.stop_lines and not self.checks:
            raise OptionError("a run stops only in a program built with checks: leave out --no-checks")
        _one_of("numerics", self.numerics, NUMERICS)
        _one_of("rounding", self.rounding, ROUNDINGS)

    @classmethod
    def from_knobs(cls) -> BuildOptions:
        """The options from environment variables. Raises KnobError for a wrong value."""
        return cls(
            numerics=knobs.NUMERICS.get(), rounding=knobs.ROUNDING.get(), fast=not knobs.is_plain("products")
        )

    @property
    def is_fast(self) -> bool:
        """Whether whole products are recognised: only without checks and with the default numerics."""
        usual = self.numerics == NUMERICS[0] and self.rounding == ROUNDINGS[0]
        return self.fast and usual and not self.checks and not self.sanitize

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """The C++ compiler's flags for them, for generated code, runtime and external kernels alike."""
        flags = {
            "-DVNPU_CHECKS=1": self.checks,
            "-DVNPU_BFP16=1": self.numerics == "bfp16",
            "-DVNPU_ROUND_FLOOR=1": self.rounding == "floor",
            "-DVNPU_SANITIZE=1": self.sanitize,
            "-DVNPU_FAST=1": self.fast,
        }
        return (*(_SANITIZE if self.sanitize else ()), *(flag for flag, on in flags.items() if on))


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name} '{value}' is not known; choose one of: {', '.join(choices)}")


AIE_TIME_LIMIT = 5.0
"""Default limit of the seconds that a core may compute while nothing else goes on: cores of a device need not
end."""


_STOP = re.compile(
    r"(?P<line>[1-9]\d{0,8})(?::(?P<hit>[1-9]\d{0,17}))?(?:@(?P<x>\d{1,9})(?:,(?P<y>\d{1,9}))?)?"
)


@dataclass(frozen=True)
class StopPoint:
    """Where a run stops: before an operation of a line of the text.

    hit: the how-manieth time that one is reached, from 1 on. tile: only operations of bodies with these
    coordinates count (of a herd's tile; of a launch or segment, its point); None: all.
    """

    line: int
    hit: int = 1
    tile: tuple[int, int] | None = None

    @classmethod
    def of(cls, text: str) -> StopPoint:
        """The point that `LINE[:HIT][@X[,Y]]` names. Raises OptionError."""
        found = _STOP.fullmatch(text)
        if found is None:
            raise OptionError(
                f"'{text}' names no place to stop: write LINE, LINE:HIT, LINE@X,Y or LINE:HIT@X,Y, such as "
                "24:3@1,0 for the third time that tile (1, 0) comes to line 24"
            )
        tile = (int(found["x"]), int(found["y"] or 0)) if found["x"] else None
        return cls(int(found["line"]), int(found["hit"] or 1), tile)


@dataclass(frozen=True)
class RunOptions:
    """The options of one run. All but the defaults need a program built with checks.

    seed: 0 for the order of the program; another number for a legal schedule drawn with it.
    stats, trace: collect what `RunResult.record` then holds.
    races: `error` (a data race ends the run) or `note` (it becomes a note, and the run goes on).
    garbage: 0, or a number that what memory holds at first is drawn with: L1, L2, variables of kernels.
    time_limit: seconds of computing after which a loop ends the run where no channel, DMA or launch has moved
    and no end is in sight; 0: none does. None: AIE_TIME_LIMIT for a module with aie.device, else 0.
    traced: the address of an element of an argument, of which `RunResult.writer` says what wrote it; 0: none.
    threads: how many run launch points side by side; 0: as many as VNPU_THREADS says. Races that are notes
    are found on one.
    stops: where the run stops, whichever comes first; lines of `BuildOptions.stop_lines`. show: the buffers
    to look at there (`--show`).
    """

    seed: int = 0
    stats: bool = False
    trace: bool = False
    races: str = "error"
    garbage: int = 0
    time_limit: float | None = None
    traced: int = 0
    threads: int = 0
    stops: tuple[StopPoint, ...] = ()
    show: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("races", self.races, RACES)
        if self.time_limit is not None and not 0 <= self.time_limit <= MAX_SECONDS:
            raise OptionError(
                f"a time limit of {self.time_limit:g} s makes no sense: give seconds up to {MAX_SECONDS}, "
                "or 0 for none"
            )


EXACT = BuildOptions()
"""The default build options."""

IN_ORDER = RunOptions()
"""The default run options."""
