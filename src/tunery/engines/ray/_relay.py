"""Joins the standard input and output with an agent on a Ray node, through the socket of the bridge beside us. It is
run as a file, `python -I -S _relay.py SOCKET NODE agent --stdio`, and imports nothing that is slow to start."""

import os
import socket
import sys
import threading

_READ = 1 << 18


def main() -> int:
    path, node = sys.argv[1:3]
    with socket.socket(socket.AF_UNIX) as bridge:
        try:
            bridge.connect(path)
        except OSError as error:
            print(f"the Ray cluster is away: {error.strerror}", file=sys.stderr)  # noqa: T201
            return 1
        bridge.sendall(f"agent {node}\n".encode())

        def ask() -> None:
            try:
                while data := os.read(0, _READ):
                    bridge.sendall(data)
                bridge.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        threading.Thread(target=ask, daemon=True).start()
        said = False
        try:
            while data := bridge.recv(_READ):
                said = True
                while data:
                    data = data[os.write(1, data) :]
        except OSError:
            pass
        if not said:
            print(f"node {node} is not in the Ray cluster, or tunery is not installed there", file=sys.stderr)  # noqa: T201
        return 0 if said else 1


if __name__ == "__main__":
    sys.exit(main())
