"""Streams that their caller closed or that take no more, in processes of their own."""

import os
import subprocess
import sys

import pytest

LOST = "error: standard output takes no more ({}), and the rest of it is lost; send it elsewhere, or free {}"
FULL = LOST.format("No space left on device", "space there\n")
CLOSED = LOST.format("it is closed", "space there\n")


def command(words, redirected, unbuffered=""):
    """Exit code, standard output and the last line of standard error; a shell redirects the streams."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m aerie {words} {redirected}', sys.executable],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    return done.returncode, done.stdout, "".join(done.stderr.splitlines(keepends=True)[-1:])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "words", ["run --prompt hi --backend virtual --n-tokens 2", "--version", "vnpu --help"]
)
def test_a_full_device(words):
    assert command(words, ">/dev/full") == (2, "", FULL)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_device_without_a_buffer():
    assert command("kernels list", ">/dev/full", unbuffered="1") == (2, "", FULL)


@pytest.mark.parametrize("words", ["run --prompt hi --backend virtual --n-tokens 2", "kernels list"])
def test_a_closed_output(words):
    assert command(words, ">&-") == (2, "", CLOSED)


def test_other_streams_that_are_closed():
    """No notes, and an input at its end; the output is what it is with them."""
    code, answer, errors = command("run --prompt hi --backend virtual --n-tokens 2", "")
    assert command("run --prompt hi --backend virtual --n-tokens 2", "2>&-") == (code, answer, "")
    assert (code, bool(answer), bool(errors)) == (0, True, True)
    code, answer, _ = command("chat --backend virtual", "<&-")
    assert (code, answer) == (0, "")


def test_what_needs_no_output_does_without():
    code, _, errors = command("compile --backend virtual", ">&-")
    assert code == 0, errors
