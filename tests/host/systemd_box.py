"""A real systemd of the test's own, as root: own namespaces, over a throw-away layer above this machine's files.

    box = SystemdBox(directory, shared=[checkout, temporary files]); box.start(); box.run([...]); box.stop()

Nothing of the machine is changed: what systemd writes goes to memory and is gone with it. The shared directories are the
only ones in which inside and outside are the same.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

_UNIFIED = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_MASKED = (
    "systemd-sysctl.service", "systemd-binfmt.service", "systemd-modules-load.service", "systemd-udevd.service",
    "systemd-udev-trigger.service", "systemd-remount-fs.service", "systemd-tmpfiles-setup.service",
    "systemd-tmpfiles-setup-dev.service", "systemd-tmpfiles-clean.service", "systemd-sysusers.service",
    "systemd-random-seed.service", "systemd-update-utmp.service", "kmod-static-nodes.service", "dev-hugepages.mount",
    "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount",
    "proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount", "tmp.mount", "fstrim.timer",
    "systemd-tmpfiles-clean.timer",
)  # fmt: skip


def why_not() -> str:
    """Why there can be no box here; empty if there can."""
    if os.geteuid() != 0:
        return "a systemd of one's own needs root"
    if not Path("/lib/systemd/systemd").exists():
        return "systemd is not installed"
    return "" if _cgroup_root() else "there is no writable cgroup v2"


def _cgroup_root() -> Path | None:
    return next((path for path in _UNIFIED if os.access(path / "cgroup.procs", os.W_OK)), None)


class SystemdBox:
    """One private systemd, until `stop`."""

    def __init__(self, directory: Path, shared: list[Path]) -> None:
        self.directory = directory
        self.shared = shared
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._cgroup: Path | None = None

    def start(self) -> None:
        root = _cgroup_root()
        assert root
        self._cgroup = root / f"slipway-test-{os.getpid()}"
        self._cgroup.mkdir(exist_ok=True)
        namespaces = ["--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
        inside = [sys.executable, "-m", "tests.host.systemd_box", str(self.directory), *map(str, self.shared)]
        self._process = subprocess.Popen(
            ["unshare", "--fork", "--kill-child", *namespaces, "--propagation", "private", "--mount-proc", *inside],
            preexec_fn=lambda: (self._cgroup / "cgroup.procs").write_text("0"),  # type: ignore[operator,arg-type,return-value]
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "boot.log").open("wb"),
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            found = children.read_text().split() if children.exists() else []
            self._init = int(found[0]) if found else 0
            if self._init and self.run(["systemctl", "is-active", "--quiet", "basic.target"]).returncode == 0:
                return
            assert self._process.poll() is None, (self.directory / "boot.log").read_text()
            time.sleep(0.1)
        raise AssertionError(f"systemd did not come up: {(self.directory / 'boot.log').read_text()}")

    def run(self, argv: list[str], *, seconds: float = 60, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, in this process's working directory."""
        enter = ["nsenter", "--target", str(self._init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return subprocess.run(
            [*enter, f"--wdns={Path.cwd()}", "--", *argv],
            capture_output=True, text=True, timeout=seconds, check=False, env={**os.environ, **environment},
        )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # unshare takes its child, the box's init, with it
            self._process.wait()
        for _ in range(100):
            if self._cgroup is None or not self._cgroup.exists():
                return
            for path in sorted(self._cgroup.rglob("*"), reverse=True):
                if path.is_dir():
                    _remove(path)
            _remove(self._cgroup)
            time.sleep(0.05)


def _remove(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        return


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main(directory: Path, shared: list[Path]) -> None:
    """Inside the new namespaces, as their first process: make a root of our own, then become systemd."""
    layers, root = directory / "layers", directory / "root"
    for path in (layers, root):
        path.mkdir()
    _mount("-t", "tmpfs", "tmpfs", str(layers))
    for name in ("upper", "work"):
        (layers / name).mkdir()
    _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work", str(root))
    for source in shared:
        target = root / source.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        _mount("--rbind", str(source), str(target))
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("-t", "sysfs", "-o", "ro", "sysfs", f"{root}/sys")
    _mount("-t", "tmpfs", "tmpfs", f"{root}/run")
    _mount("--rbind", "/dev", f"{root}/dev")
    _mount("-t", "tmpfs", "tmpfs", f"{root}/sys/fs/cgroup")
    _mount("-t", "cgroup2", "cgroup2", f"{root}/sys/fs/cgroup")
    units = root / "etc/systemd/system"
    for name in _MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    for folder in units.glob("*.wants"):
        for link in folder.iterdir():
            link.unlink()
    (root / "etc/machine-id").write_text("")
    old = root / ".old"
    old.mkdir()
    os.chdir(root)
    subprocess.run(["pivot_root", ".", ".old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "-l", "/.old"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ |= {"container": "slipway-test"}  # how systemd is told that it is in one
    options = ["--system", "--unit=basic.target", "--log-target=journal", "--show-status=no"]
    os.execv("/lib/systemd/systemd", ["/lib/systemd/systemd", *options])


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
