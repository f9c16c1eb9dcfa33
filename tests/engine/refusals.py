"""What a command does with what it cannot take, for tests of the command line."""


def check_refused(result, message):
    """Exit code 2, nothing on stdout, one line on stderr."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
