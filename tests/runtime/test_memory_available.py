"""How much memory there is, as the system, control groups and ulimit tell it; what buffers take of it."""

import subprocess
import sys

import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16, f32
from aerie.runtime.memory import (
    BufferBytes,
    available_bytes,
    buffer_bytes,
    format_bytes,
    memory_advice,
    resident_bytes,
)

NO_LIMIT_V1 = "9223372036854771712"


@pytest.fixture
def available_with(tmp_path):
    """available_with({path: text}) -> the bytes available on a machine with these files."""

    def tell(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return available_bytes(tmp_path)

    return tell


MEMINFO = {"proc/meminfo": "MemTotal:       9000 kB\nMemAvailable:    4000 kB\n"}


def v2(group, limit, current, stat=""):
    """A control group of version 2."""
    folder = f"sys/fs/cgroup{group}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": stat,
    }


def v1(group, limit, usage, stat=""):
    """A control group of version 1."""
    folder = f"sys/fs/cgroup/memory{group}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": stat,
    }


def test_a_system_without_information(available_with):
    assert available_with({}) is None
    assert available_with({"proc/meminfo": "garbage", "proc/self/cgroup": "0::/gone\n"}) is None


def test_what_this_process_has(available_with, tmp_path):
    assert resident_bytes(tmp_path) == 0
    available_with({"proc/self/status": "VmHWM:\t  900 kB\nVmRSS:\t  700 kB\n"})
    assert resident_bytes(tmp_path) == 700 * 1024


ARENAS = """
import re, resource, threading
from pathlib import Path
from aerie.runtime.memory import use_one_malloc_arena
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
use_one_malloc_arena()
size = lambda: int(re.search(r"VmSize:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10
before, gate = size(), threading.Barrier(9)
threads = [threading.Thread(target=gate.wait) for _ in range(8)]
for thread in threads:
    thread.start()
print(size() - before)
gate.wait()
"""


def test_threads_take_no_addresses_of_their_own_where_these_are_limited():
    """But their stacks, of 8 MiB as a rule; each thread's own arena would be another 64 MiB."""
    done = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 * 40


def test_what_the_system_has(available_with):
    assert available_with(MEMINFO) == 4000 * 1024


CACHE_V2 = "anon 5\nactive_file 20000\ninactive_file 30000\n"
CACHE_V1 = "active_file 1\ntotal_active_file 20000\ntotal_inactive_file 30000\n"


@pytest.mark.parametrize(
    ("of", "files", "expected"),
    [
        ("0::/a/b", v2("/a/b", 1_000_000, 300_000), 700_000),
        ("0::/a/b", {**v2("/a/b", "max", 7), **v2("/a", 900_000, 300_000)}, 600_000),
        ("0::/", v2("/", 1_000_000, 300_000, CACHE_V2), 750_000),
        ("0::/not/in/this/namespace", v2("", 1_000_000, 300_000), 700_000),
        ("5:cpu,memory:/a\n0::/", v1("/a", 1_000_000, 300_000, CACHE_V1), 750_000),
        ("4:memory:/a", {**v1("/a", NO_LIMIT_V1, 5), **v1("", 800_000, 0)}, 800_000),
        ("4:cpuset:/a", v1("/a", 1_000_000, 0), 4000 * 1024),
        ("0::/a", v2("/a", 1000, 5000), 0),
        ("0::/a", {"sys/fs/cgroup/a/memory.max": "1000\n"}, 4000 * 1024),
    ],
    ids=[
        "v2",
        "v2 above",
        "page cache",
        "another namespace",
        "v1",
        "v1 above",
        "no limit",
        "exceeded",
        "no usage",
    ],
)
def test_limits_of_control_groups(available_with, of, files, expected):
    assert available_with({**MEMINFO, "proc/self/cgroup": f"{of}\n", **files}) == expected


@pytest.mark.parametrize(
    ("limit", "left"), [("Max address space  3000000  unlimited  bytes", 3_000_000 - 102_400),
                        ("Max data size      1000000  2000000    bytes", 1_000_000 - 51_200),
                        ("Max address space  unlimited  unlimited  bytes", 4000 * 1024)]
)  # fmt: skip
def test_ulimit(available_with, limit, left):
    status = "VmPeak:\t 999 kB\nVmSize:\t     100 kB\nVmData:\t      50 kB\n"
    assert available_with({**MEMINFO, "proc/self/limits": f"{limit}\n", "proc/self/status": status}) == left


def test_this_machine():
    available = available_bytes()
    assert available
    assert 0 < available < 1 << 50


def test_a_real_ulimit():
    script = """
import resource
from aerie.runtime.memory import available_bytes
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
print(available_bytes())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1 << 30


TABLE = ArgumentTable(
    (
        Argument("x", (4, 8), bf16, Role.INPUT),
        Argument("w", (8, 8), bf16, Role.WEIGHT),
        Argument("lut", (2,), f32, Role.LUT),
        Argument("mid", (4, 8), bf16, Role.INTERMEDIATE),
        Argument("y", (4, 8), bf16, Role.OUTPUT),
    )
)
SETS = [("one", TABLE), ("two", TABLE)]
SHARING = {("one", "w"): "w", ("two", "w"): "w", ("one", "y"): "between", ("two", "x"): "between"}


@pytest.mark.parametrize(
    ("plain", "copies", "expected"),
    [("", 1, BufferBytes(128 + 2 * 8, 5 * 64)), ("buffers", 1, BufferBytes(2 * 136, 6 * 64)),
     ("all", 2, BufferBytes(4 * 136, 10 * 64))],
)  # fmt: skip
def test_what_buffers_take(monkeypatch, plain, copies, expected):
    monkeypatch.setenv("AERIE_PLAIN", plain)
    assert buffer_bytes(SETS, SHARING, copies) == expected


def test_allocated_buffers_match_the_count(open_cache, program, monkeypatch):
    """The buffers of a real cache, counted as they are made."""
    sharing = {("one", "w"): "w", ("two", "w"): "w", ("one", "y"): "between", ("two", "x"): "between"}
    with open_cache(sharing=sharing) as cache:
        cache.compile_and_cache(program)
        made, real = [], cache._contexts.buffer_object

        def counted(label, argument):
            made.append(argument.nbytes)
            return real(label, argument)

        monkeypatch.setattr(cache._buffers, "_buffer_object", counted)
        for bo_key in ("one", "two"):
            cache.unfilled_weights(program, bo_key)
    estimate = buffer_bytes([(key, program.arguments) for key in ("one", "two")], sharing)
    assert estimate.weights + estimate.activations == sum(made)


def test_ways_to_save(monkeypatch):
    assert memory_advice() == []
    monkeypatch.setenv("AERIE_PLAIN", "buffers")
    assert memory_advice(copies=2) == ["unset AERIE_PLAIN", "unset VNPU_STRICT"]


@pytest.mark.parametrize(("nbytes", "words"), [(3 << 29, "1.5 GiB"), (900 << 20, "900 MiB")])
def test_sizes_in_words(nbytes, words):
    assert format_bytes(nbytes) == words
