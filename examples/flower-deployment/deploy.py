"""A whole deployment on one machine: certificates, node keys, SuperLink, SuperNodes, a run, ledger, report.

    python deploy.py DIR [--clients 3] [--set KEY=VALUE]...

Everything goes into DIR. The exit code is not zero if the run failed, and no process is left behind. On
machines of your own, run the same commands where they belong: this file prints each of them.

Run it again on the same DIR: a run that was interrupted goes on; after one that is over, the same clients,
with the same keys and what they hold by now, begin a new one.
"""

import argparse
import fcntl
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import count, islice
from pathlib import Path
from signal import SIGKILL
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
FEW = ("game.num_rounds=5", "clients.initial_volume=60")  # soon done, and fresh data are worth their price
ADMISSION = 180.0  # seconds that nodes are started again, if the SuperLink does not let them in
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class Deployment:
    """A SuperLink with TLS and node authentication, and SuperNodes, all on loopback."""

    def __init__(self, folder: Path, clients: int, changes: Sequence[str] = ()) -> None:
        self.folder = folder.absolute()
        self.clients = clients
        self.app = self.folder / "app"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, *self.node_ports = free_ports(1 + clients)
        self._changes = list(changes)

    def __enter__(self) -> "Deployment":
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock(self.folder)
        write_certificates(self.folder)
        for client in range(self.clients):
            write_node_key(self.folder, client)
        if not self.app.exists():
            told = set_options([f"clients.count={self.clients}", *self._changes])
            self.command("dufl", "flower", "new", str(self.app), *told)
        self.connect(f'root-certificates = "{self.folder / "ca.crt"}"')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        everyone = [pid for process in self.processes.values() for pid in family(process)]
        nodes = [process for name, process in self.processes.items() if name != "superlink"]
        for process in nodes:
            process.terminate()  # it tells the SuperLink that it goes, and so may come again at once
        for process in nodes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        kill(everyone)
        for process in self.processes.values():
            process.wait(60)
        self.processes.clear()
        os.close(self._lock)

    def connect(self, trust: str) -> None:
        """Tell `flwr` where the SuperLink is, and how it is to be trusted."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    # ----- processes

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self.start(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", "superlink.sqlite"),
        )
        self.wait_for_port("superlink", self.port)

    def register(self, client: int) -> None:
        """Tell the SuperLink a node's public key, if it does not know it from a run before."""
        try:
            self.flwr("supernode", "register", str(self.folder / f"node-{client}.pub"), "here")
        except RuntimeError as error:
            if "Public key already in use" not in str(error):
                raise

    def start_node(self, client: int, key: str | None = None, plaintext: bool = False) -> None:
        """Start a SuperNode, with the key of another file or with none, if that is to be tried."""
        secure = ["--insecure"] if plaintext else ["--root-certificates", "ca.crt"]
        name = f"node-{client}" if key is None else key
        keys = ["--auth-supernode-private-key", name] if name else []
        told = f'partition-id={client} config="{self.app / "client.toml"}" folder="{self.folder / "clients"}"'
        self.start(
            f"node-{client}",
            *("flower-supernode", *secure, "--superlink", f"127.0.0.1:{self.port}", *keys),
            *("--host", "127.0.0.1", "--port", str(self.node_ports[client]), "--node-config", told),
        )

    def restart_node(self, client: int, seconds: float = 180) -> None:
        """Start a node that was killed: until the SuperLink misses its heartbeats, it lets no other in."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            self.start_node(client)
            with suppress(subprocess.TimeoutExpired):
                self.processes[f"node-{client}"].wait(10)
                continue
            return
        raise TimeoutError(f"node {client} is not let in after {seconds:g} s")

    def start(self, name: str, *command: str) -> None:
        """Start a program whose output goes to NAME.log, in a process group of its own."""
        print("$", shlex.join(command), "&", flush=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Kill a program and all that it started, and wait until they are gone."""
        process = self.processes.pop(name)
        gone = family(process)
        kill(gone)
        process.wait(60)
        while any(is_alive(pid) for pid in gone):
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """What a program has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # ----- the run

    def run_folder(self) -> Path:
        """Where the run that is not over goes: `run` in the app directory, then `run-2` and so on."""
        names = (f"run-{number}" if number > 1 else "run" for number in count(1))
        return next(self.app / name for name in names if not (self.app / name / "summary.json").exists())

    def run(self, *options: str) -> int:
        """Start the run; its number."""
        said = self.flwr("run", str(self.app), "here", "--format", "json", *options)
        found = json.loads(said[said.index("{") :])
        if not found["success"]:
            raise RuntimeError(found["error-message"])
        return int(found["run-id"])

    def status(self, run: int) -> str:
        """How the run is: `flwr run` ends with 0 even if the run fails, so this must be asked."""
        said = self.flwr("list", "here", "--run-id", str(run), "--format", "json", quiet=True)
        found: Any = json.loads(said[said.index("{") :])
        return str(found["runs"][0]["status"])

    def wait(self, run: int, seconds: float = 600) -> str:
        """Wait for the end of the run."""
        began = time.monotonic()
        while not (status := self.status(run)).startswith("finished"):
            for name in [name for name, process in self.processes.items() if process.poll() is not None]:
                if name == "superlink" or time.monotonic() - began > ADMISSION:
                    raise RuntimeError(f"{name} has ended:\n{self.log(name)}")
                self.start_node(int(name.removeprefix("node-")))  # as a service manager would
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"the run is still {status} after {seconds:g} s")
            time.sleep(4)
        return status

    # ----- small things

    @property
    def environment(self) -> dict[str, str]:
        """For every program: where Flower keeps its things, and that it tells nobody."""
        return (
            os.environ
            | QUIET
            | {"FLWR_HOME": str(self.folder / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        )

    def flwr(self, *arguments: str, quiet: bool = False) -> str:
        """A command of Flower's; what it prints."""
        return self.command("flwr", *arguments, quiet=quiet)

    def command(self, *command: str, quiet: bool = False) -> str:
        """Run a program to its end."""
        if not quiet:
            print("$", shlex.join(command), flush=True)
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def wait_for_port(self, name: str, port: int, seconds: float = 120) -> None:
        """Wait until a program listens."""
        began = time.monotonic()
        while True:
            if not is_free(port):
                return
            if self.processes[name].poll() is not None or time.monotonic() - began > seconds:
                raise RuntimeError(f"{name} does not listen:\n{self.log(name)}")
            time.sleep(0.3)


def lock(folder: Path) -> int:
    """Hold a folder until the descriptor is closed; refuse one that another deployment holds."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RuntimeError(f"DIR must not be in use, but another deployment runs in {folder}") from None
    return descriptor


def settle(folder: Path, clients: int | None, changes: Sequence[str]) -> tuple[int, list[str]]:
    """How many clients, and which changes: those that DIR was made with, or those of a new DIR."""
    path = folder / "deployment.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise RuntimeError(f"DIR must be new, empty or that of a deployment, got {folder}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = {"clients": clients or 3, "set": [*FEW, *changes]}
        path.write_text(json.dumps(made) + "\n", encoding="utf-8")
    known = json.loads(path.read_text(encoding="utf-8"))
    if known["clients"] != (clients or known["clients"]) or (changes and known["set"] != [*FEW, *changes]):
        options = shlex.join(["--clients", str(known["clients"]), *set_options(known["set"])])
        raise RuntimeError(f"{folder} was made with {options}: give none of them, or another DIR")
    return known["clients"], known["set"]


def set_options(changes: Sequence[str]) -> list[str]:
    """Changes as options of a command."""
    return [part for change in changes for part in ("--set", change)]


def family(process: "subprocess.Popen[bytes]") -> list[int]:
    """A process and all that it started."""
    return [process.pid, *descendants(process.pid)]


def kill(pids: Sequence[int]) -> None:
    """End processes at once."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found = parents.get(pid, [])
    return [*found, *(below for child in found for below in descendants(child))]


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a remainder."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that no outgoing connection is given in the meantime."""
    below = random.sample(range(20_000, 32_000), 12_000)  # those given to connections begin above
    return list(islice(filter(is_free, below), count))


def is_free(port: int) -> bool:
    """Whether nobody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def write_certificates(folder: Path) -> None:
    """A certificate authority, and a certificate for the SuperLink at 127.0.0.1."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "DUFL example authority")])
    now = datetime.now(UTC)

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, ca: bool) -> x509.Certificate:
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(authority, hashes.SHA256())
        )

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate(issuer, authority, ca=True).public_bytes(pem))
    (folder / "server.pem").write_bytes(certificate(subject, server, ca=False).public_bytes(pem))
    write_private(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def write_node_key(folder: Path, client: int) -> None:
    """A node's private and public key; those that are there are kept."""
    if (folder / f"node-{client}").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / f"node-{client}", key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"node-{client}.pub").write_bytes(public)


def write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """A private key that nobody else may read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def deploy(folder: Path, clients: int, changes: Sequence[str]) -> int:
    """Deploy, run, show the ledger, write the report."""
    with Deployment(folder, clients, changes) as deployment:
        deployment.start_superlink()
        for client in range(clients):
            deployment.register(client)
            deployment.start_node(client)
        done = deployment.run_folder()
        run = deployment.run("--run-config", f"folder={json.dumps(str(done))}")
        status = deployment.wait(run)
        print(f"run {run}: {status}")
        if status != "finished:completed":
            print(deployment.flwr("log", str(run), "here", "--show"), file=sys.stderr)
            return 1
        print(deployment.command("dufl", "ledger", str(done / "ledger.sqlite")))
        print(deployment.command("dufl", "report", str(done)))
    return 0


def main() -> int:
    """Read the options; whatever fails is said in a sentence."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--clients", type=int, help="3 if it is not given")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    told = parser.parse_args()
    if told.clients is not None and told.clients < 1:
        parser.error(f"--clients must be >= 1, got {told.clients}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no process is left behind
    try:
        return deploy(told.folder, *settle(told.folder, told.clients, told.set))
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
