"""Deploy on one machine: certificates, node keys, a SuperLink, SuperNodes, a run, its ledger and its report.

    python deploy.py DIR [--clients 3] [--set KEY=VALUE]...

All files are in DIR. The exit code is not zero if the run fails, and all processes are stopped at the end.
The script prints every command; in a deployment of your own, run each of them where it belongs.

With the same DIR, the script resumes an interrupted run. If the last run is finished, it starts a new one,
with the same clients, the same keys and the samples that the clients hold by now.
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
FEW = ("game.num_rounds=5", "clients.initial_volume=60")  # short, and fresh data is worth its price
ADMISSION = 180.0  # seconds during which a node that the SuperLink rejects is restarted
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
            options = set_options([f"clients.count={self.clients}", *self._changes])
            self.command("dufl", "flower", "new", str(self.app), "--data", str(self.app), *options)
        self.connect(f'root-certificates = "{self.folder / "ca.crt"}"')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        everyone = [pid for process in self.processes.values() for pid in family(process)]
        nodes = [process for name, process in self.processes.items() if name != "superlink"]
        for process in nodes:
            process.terminate()  # it unregisters from the SuperLink, and can reconnect at once
        for process in nodes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        kill(everyone)
        for process in self.processes.values():
            process.wait(60)
        self.processes.clear()
        os.close(self._lock)

    def connect(self, trust: str) -> None:
        """Write the address of the SuperLink, and how to verify it, to the configuration of `flwr`."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    # ----- processes

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.start("superlink", *superlink_command("127.0.0.1", self.port))
        self.wait_for_port("superlink", self.port)

    def register(self, client: int) -> None:
        """Register a node's public key with the SuperLink, unless it is registered already."""
        try:
            self.flwr("supernode", "register", str(self.folder / f"node-{client}.pub"), "here")
        except RuntimeError as error:
            if "Public key already in use" not in str(error):
                raise

    def start_node(self, client: int, key: str | None = None, plaintext: bool = False) -> None:
        """Start a SuperNode; `key` is the file of another private key, or empty for none."""
        secure = ["--insecure"] if plaintext else ["--root-certificates", "ca.crt"]
        name = f"node-{client}" if key is None else key
        keys = ["--auth-supernode-private-key", name] if name else []
        config, folder = self.app / "client.toml", self.folder / "clients"
        addresses = f"127.0.0.1:{self.port}", "127.0.0.1", self.node_ports[client]
        node = node_config(client, config, folder)
        self.start(f"node-{client}", *supernode_command(*addresses, [*secure, *keys], node))

    def restart_node(self, client: int, seconds: float = 180) -> None:
        """Start a node that was killed; the SuperLink rejects it until the old heartbeats expire."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            self.start_node(client)
            with suppress(subprocess.TimeoutExpired):
                self.processes[f"node-{client}"].wait(10)
                continue
            return
        raise TimeoutError(f"the SuperLink still rejects node {client} after {seconds:g} s")

    def start(self, name: str, *command: str) -> None:
        """Start a program in its own process group, with its output in NAME.log."""
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
        """Kill a program and its descendants, and wait until they have ended."""
        process = self.processes.pop(name)
        pids = family(process)
        kill(pids)
        process.wait(60)
        while any(is_alive(pid) for pid in pids):
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """The output of a program so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # ----- the run

    def run_folder(self) -> Path:
        """The directory of the first unfinished run: `run` in the app directory, then `run-2` and so on."""
        names = (f"run-{number}" if number > 1 else "run" for number in count(1))
        return next(self.app / name for name in names if not (self.app / name / "summary.json").exists())

    def run(self, *options: str) -> int:
        """Start the run, and return its id."""
        data = f"data={json.dumps(str(self.app))}"
        output = self.flwr("run", str(self.app), "here", "--format", "json", "--run-config", data, *options)
        result = json.loads(output[output.index("{") :])
        if not result["success"]:
            raise RuntimeError(result["error-message"])
        return int(result["run-id"])

    def status(self, run: int) -> str:
        """The status of the run. The exit code of `flwr run` is 0 even if the run fails."""
        output = self.flwr("list", "here", "--run-id", str(run), "--format", "json", quiet=True)
        result: Any = json.loads(output[output.index("{") :])
        return str(result["runs"][0]["status"])

    def wait(self, run: int, seconds: float = 600) -> str:
        """Wait until the run has ended, and return its status."""
        began = time.monotonic()
        while not (status := self.status(run)).startswith("finished"):
            self.start("run", "flwr", "log", str(run), "here")  # follows the run to its end
            while self.processes["run"].poll() is None:
                self.restart_ended(time.monotonic() - began)
                if time.monotonic() - began > seconds:
                    raise TimeoutError(f"the run is still {status} after {seconds:g} s")
                time.sleep(0.2)
            self.stop("run")
        return status

    def restart_ended(self, elapsed: float) -> None:
        """Restart nodes that have ended, as a service manager would, in the first seconds of a run."""
        programs = {name: process for name, process in self.processes.items() if name != "run"}
        for name in [name for name, process in programs.items() if process.poll() is not None]:
            if name == "superlink" or elapsed > ADMISSION:
                raise RuntimeError(f"{name} has ended:\n{self.log(name)}")
            self.start_node(int(name.removeprefix("node-")))

    # ----- commands

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all programs: Flower's home directory, and no telemetry."""
        return (
            os.environ
            | QUIET
            | {"FLWR_HOME": str(self.folder / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        )

    def flwr(self, *arguments: str, quiet: bool = False) -> str:
        """Run a command of Flower, and return its output."""
        return self.command("flwr", *arguments, quiet=quiet)

    def command(self, *command: str, quiet: bool = False) -> str:
        """Run a program, and return its output."""
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
        """Wait until a program listens on a port."""
        began = time.monotonic()
        while True:
            if not is_free(port):
                return
            if self.processes[name].poll() is not None or time.monotonic() - began > seconds:
                raise RuntimeError(f"{name} does not listen:\n{self.log(name)}")
            time.sleep(0.3)


def superlink_command(host: str, port: int, certificates: Path = Path(), state: Path = Path()) -> list[str]:
    """The command that starts a SuperLink with TLS and node authentication."""
    ca, certificate, key = (str(certificates / name) for name in ("ca.crt", "server.pem", "server.key"))
    return [
        *("flower-superlink", "--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--database", str(state / "superlink.sqlite")),
    ]


def supernode_command(superlink: str, host: str, port: int, trust: Sequence[str], node: str) -> list[str]:
    """The command that starts a SuperNode; `trust` are the options with certificate and key."""
    return [
        *("flower-supernode", "--superlink", superlink, *trust),
        *("--host", host, "--port", str(port), "--node-config", node),
    ]


def node_config(client: int, config: Path, folder: Path) -> str:
    """What a node knows: the client's number, its configuration and the directory of its samples."""
    return f'partition-id={client} config="{config}" folder="{folder}"'


def lock(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; fail if another deployment has locked it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RuntimeError(f"DIR must not be in use, but another deployment is running in {folder}") from None
    return descriptor


def settle(folder: Path, clients: int | None, changes: Sequence[str]) -> tuple[int, list[str]]:
    """The number of clients and the changes of DIR; those of a new DIR are stored in it."""
    path = folder / "deployment.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise RuntimeError(f"DIR must be new, empty or the directory of a deployment, got {folder}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {"clients": clients or 3, "set": [*FEW, *changes]}
        path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
    known = json.loads(path.read_text(encoding="utf-8"))
    if known["clients"] != (clients or known["clients"]) or (changes and known["set"] != [*FEW, *changes]):
        options = shlex.join(["--clients", str(known["clients"]), *set_options(known["set"])])
        raise RuntimeError(f"{folder} was created with {options}: omit these options, or use another DIR")
    return known["clients"], known["set"]


def set_options(changes: Sequence[str]) -> list[str]:
    """Changes as command-line options."""
    return [part for change in changes for part in ("--set", change)]


def family(process: "subprocess.Popen[bytes]") -> list[int]:
    """The ids of a process and its descendants."""
    return [process.pid, *descendants(process.pid)]


def kill(pids: Sequence[int]) -> None:
    """Kill processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)


def descendants(pid: int) -> list[int]:
    """The ids of the descendants of a process."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    children = parents.get(pid, [])
    return [*children, *(below for child in children for below in descendants(child))]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Free ports below the range from which the system assigns ports to outgoing connections."""
    candidates = random.sample(range(20_000, 32_000), 12_000)
    return list(islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """Whether no program listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def write_certificates(folder: Path, *hosts: str) -> None:
    """Write the certificate of an authority, and one for the SuperLink at 127.0.0.1 and other hosts."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "DUFL example authority")])
    now = datetime.now(UTC)

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, ca: bool) -> x509.Certificate:
        names = [*map(x509.DNSName, ("localhost", *hosts)), x509.IPAddress(ip_address("127.0.0.1"))]
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
    """Write the keys of a node, unless they exist."""
    if (folder / f"node-{client}").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / f"node-{client}", key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"node-{client}.pub").write_bytes(public)


def write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key with mode 0600 from its creation."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def deploy(folder: Path, clients: int, changes: Sequence[str]) -> int:
    """Deploy, run, print the ledger and write the report."""
    with Deployment(folder, clients, changes) as deployment:
        deployment.start_superlink()
        for client in range(clients):
            deployment.register(client)
            deployment.start_node(client)
        results = deployment.run_folder()
        run = deployment.run("--run-config", f"folder={json.dumps(str(results))}")
        status = deployment.wait(run)
        print(f"run {run}: {status}")
        if status != "finished:completed":
            print(deployment.flwr("log", str(run), "here", "--show"), file=sys.stderr)
            return 1
        print(deployment.command("dufl", "ledger", "show", str(results / "ledger.sqlite")))
        print(deployment.command("dufl", "report", str(results)))
    return 0


def main() -> int:
    """Parse the options; an error is one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--clients", type=int, help="the number of clients (default: 3)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if options.clients is not None and options.clients < 1:
        parser.error(f"--clients must be >= 1, got {options.clients}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops all processes
    try:
        return deploy(options.folder, *settle(options.folder, options.clients, options.set))
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
