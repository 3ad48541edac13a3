"""Write the files that compose.yaml mounts: certificates, node keys, an app, configurations and directories.

    python prepare.py DIR [--set KEY=VALUE]...

DIR must be new. Only you can read it. The containers run as you, or as user 1000 if you are root.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import BIN, FEW, set_options, write_certificates, write_node_key

CLIENTS = 3  # the SuperNodes in compose.yaml
CONNECTION = """\
[superlink]
default = "here"

[superlink.here]
address = "superlink:8000"
root-certificates = "/run/secrets/ca.crt"
"""


def prepare(folder: Path, changes: Sequence[str]) -> None:
    """Write everything into a new folder."""
    folder.mkdir(mode=0o700, parents=True)
    write_certificates(folder, "superlink")
    for client in range(CLIENTS):
        write_node_key(folder, client)
    options = set_options([f"clients.count={CLIENTS}", *FEW, *changes])
    command = ["flower", "new", str(folder / "app"), "--data", str(folder / "server"), *options]
    subprocess.run([str(BIN / "dufl"), *command], check=True, stdout=subprocess.DEVNULL)
    for client in range(CLIENTS):  # in a deployment of your own, each client writes its own costs
        for name in ("state", "samples"):
            (folder / f"client-{client}" / name).mkdir(parents=True)
        shutil.copy(folder / "server" / "client.toml", folder / f"client-{client}.toml")
    (folder / "server" / "client.toml").unlink()
    for name in ("state", "cli", "keys"):
        (folder / name).mkdir()
    for key in folder.glob("node-*.pub"):
        key.rename(folder / "keys" / key.name)
    (folder / "cli" / "config.toml").write_text(CONNECTION)
    user, group = (os.getuid(), os.getgid()) if os.getuid() else (1000, 1000)  # never root
    lines = f"DEPLOYMENT={folder.absolute()}", f"DUFL_UID={user}", f"DUFL_GID={group}"
    (folder / ".env").write_text("\n".join(lines) + "\n")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group)


def main() -> int:
    """Parse the options; an error is one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        prepare(options.folder, options.set)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode  # it has said why
    return 0


if __name__ == "__main__":
    sys.exit(main())
