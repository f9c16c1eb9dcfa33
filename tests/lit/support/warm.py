"""`aerie` without its start: a process that has imported it forks once for every command.

    python warm.py serve SOCKET         until standard input ends; prints a line when it is ready
    python warm.py SOCKET WORDS ...     `aerie WORDS ...`, in the folder and on the files of this process

Half a second of every command was imports. A command runs in a process of its own all the same.
"""

import json
import os
import socket
import sys

PRELOADED = ("air_dialect", "kernel_builder", "virtual_npu")


def ask(path: str, words: list[str]) -> int:
    """Have a command run; its exit status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        return int(server.makefile().readline() or 1)


def serve(path: str) -> None:
    """Fork for every request, until standard input ends."""
    import importlib
    import signal
    import threading

    for room in PRELOADED:
        importlib.import_module(f"aerie.{room}.__main__")
    importlib.import_module("aerie.air_dialect.parser_printer").make_context()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(client)
            client.close()


def answer(client: socket.socket) -> None:
    """Run what the client asks for in a child, and tell how it ended."""
    request, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not request.endswith(b"\n"):
        request += client.recv(1 << 20)
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
        run(**json.loads(request))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
    os._exit(0)


def run(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """The command, as the whole of this process."""
    from aerie.__main__ import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["aerie", *words]
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else ended.code is not None
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
