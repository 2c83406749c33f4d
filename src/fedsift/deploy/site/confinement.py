"""Confines a site's SuperNode and its apps with Landlock (Linux), so that they cannot open the site's files.

Flower runs an app under the account of its SuperNode. So that an app, pinned or not, cannot read what the site's own
process guards, the SuperNode is started with a list of what it may open: Python and its packages, the system's
libraries, its own home, the socket. Everything else, data and notebook first, is refused by the kernel, to it and to
whatever it starts, for as long as they live. No rights are needed for that, and none can take it back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH, VERSION = 1, 1
NO_NEW_PRIVILEGES = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE
READ = EXECUTE | READ_FILE | READ_DIR
BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""Kinds of access that a kernel's Landlock knows: making and removing (1), moving (2), cutting off (3)."""

NO_ABSTRACT_SOCKETS, NO_SIGNALS = 1, 2
SCOPES_SINCE = 6
"""From this version on a kernel can also keep signals, and sockets that have a name but no path, within the list."""

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/nix/store")
DEVICES = ("/dev",)


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("handled", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def landlock_version() -> int:
    """What this kernel offers; 0 for nothing."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION)))


class Confinement:
    """A list of folders, as the kernel takes it. `apply` is for a new process, between fork and exec."""

    def __init__(self, readable: Iterable[Path], writable: Iterable[Path]) -> None:
        version = landlock_version()
        self._everything = BY_VERSION[min(version, max(BY_VERSION))] if version else 0
        self._ruleset = -1
        self.readable = [path.resolve() for path in readable if path.exists()]
        self.writable = [path.resolve() for path in writable if path.exists()]
        if not version:
            return
        scoped = NO_ABSTRACT_SOCKETS | NO_SIGNALS if version >= SCOPES_SINCE else 0
        attr = _RulesetAttr(self._everything, 0, scoped)
        size = ctypes.sizeof(attr) if scoped else ctypes.sizeof(ctypes.c_uint64)
        self._ruleset = _call(CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))
        for path in self.readable:
            self._allow(path, READ)
        for path in self.writable:
            self._allow(path, self._everything)

    @property
    def holds(self) -> bool:
        """Whether the kernel took the list."""
        return self._ruleset >= 0

    def reaches(self, path: Path) -> bool:
        """Whether a file lies in one of the folders after all, e.g. data kept inside a folder of Python packages."""
        place = path.resolve()
        return any(place.is_relative_to(folder) for folder in (*self.readable, *self.writable))

    def _allow(self, path: Path, access: int) -> None:
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                wanted = access & self._everything & (-1 if path.is_dir() else OF_FILES)
                rule = _PathBeneath(wanted, descriptor)
                kind = ctypes.c_int(PATH_BENEATH)
                _call(ADD_RULE, ctypes.c_int(self._ruleset), kind, ctypes.byref(rule), ctypes.c_uint32(0))
            finally:
                os.close(descriptor)

    def apply(self) -> None:
        """Give up, for this process and its children, all access to files that is not on the list.

        Where the kernel offers it, also signals to processes outside and their sockets without a path. Sockets that
        have a path, and the network, stay open.
        """
        if not self.holds:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or _call(
            RESTRICT_SELF, ctypes.c_int(self._ruleset), ctypes.c_uint32(0)
        ):
            raise OSError(ctypes.get_errno(), "the kernel did not confine the SuperNode")

    def close(self) -> None:
        if self.holds:
            os.close(self._ruleset)
            self._ruleset = -1


def of_node(home: Path, socket: Path, files: Iterable[Path], guarded: Iterable[Path] = ()) -> Confinement:
    """What a SuperNode needs: Python, the system, its home, the socket's folder, its certificate and key.

    A folder that is in Python's path only because it is the working directory (`python -m`) is left out when it holds
    what is `guarded`. Of a folder of the system that holds it, everything else is on the list.
    """
    kept = [path.resolve() for path in guarded]
    packages = [Path(entry).resolve() for entry in sys.path if entry]
    packages = [
        place
        for place in packages
        if (place / "fedsift").is_dir() or not any(path.is_relative_to(place) for path in kept)
    ]
    python = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent]
    system = [part for place in SYSTEM for part in _all_but(Path(place).resolve(), kept)]
    return Confinement([*system, *python, *packages, *files], [*map(Path, DEVICES), home, socket.parent])


def _all_but(folder: Path, kept: list[Path]) -> list[Path]:
    """The folder, or, where something guarded lies below it, all of it but that.

    Links are left out: the kernel goes by what they lead to. So are folders with very many entries, e.g. of pictures.
    """
    inside = [path for path in kept if path.is_relative_to(folder) and path != folder]
    if not inside:
        return [folder]
    try:
        entries = [entry for entry in folder.iterdir() if not entry.is_symlink() and entry not in inside]
    except OSError:
        return []
    return [part for entry in entries for part in _all_but(entry, inside)] if len(entries) <= 1000 else []


Say = Callable[[str], None]


def report(confinement: Confinement, guarded: Iterable[Path], say: Say) -> None:
    """Say what holds, and what does not: a person decides what to make of it."""
    if not confinement.holds:
        say(
            "this kernel cannot confine the SuperNode (Landlock, Linux 5.13): an app that you pin could read this "
            "site's files. Run the site in a container, or its node under an account of its own (docs/deployment.md)"
        )
        return
    open_after_all = [f"'{path}'" for path in guarded if confinement.reaches(path)]
    if open_after_all:
        say(
            f"{', '.join(open_after_all[:3])}: an app that you pin can read this, for it lies in a folder that the "
            "SuperNode needs, of Python or its own: move it elsewhere"
        )
    else:
        say("the SuperNode and its apps cannot open this site's data and notebook: the kernel sees to it")
