"""The files under a store's root, on a local disk or behind an fsspec URL (`s3://`, `gs://`, `memory://`).

Both kinds offer the same few operations on paths relative to the root. A local write is atomic and durable:
a temporary file, fsync, rename; the folders' own entries are synced when a folder is published (`rename`).
A remote write is one object, which such stores put whole or not at all.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol
from uuid import uuid4

from grpo_pipeline.errors import UserError

_CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class Files(Protocol):
    """The files under one root; every path is relative to it, with forward slashes."""

    root: str
    is_local: bool

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder; "" is the root itself."""
        ...

    def children(self, path: str) -> list[str]:
        """Names in a folder, sorted; none where there is no such folder."""
        ...

    def walk(self, path: str) -> list[str]:
        """Every file in or under a folder, sorted, as paths relative to the root."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file."""
        ...

    def stamp(self, path: str) -> Hashable | None:
        """Changes whenever the file is written anew; None where the store cannot tell."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole or not at all, making folders as needed."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens where there is none."""
        ...

    def scratch(self) -> Path:
        """A local folder for locks, and for what needs a real file although the root is remote."""
        ...


def open_files(root: str | Path) -> "LocalFiles | RemoteFiles":
    """The files under a folder or an fsspec URL; nothing is created yet."""
    text = str(root)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return RemoteFiles(text) if "://" in text else LocalFiles(text)


def read_bytes(files: Files, path: str) -> bytes:
    """All of a file."""
    with files.open(path) as file:
        return file.read()


def digest(files: Files, path: str) -> str:
    """The sha256 of a file, in hex."""
    with files.open(path) as file:
        sha = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


@contextmanager
def explain(what: str) -> Iterator[None]:
    """Turn an OSError that a person can act on into a UserError; `what` says what was being done, and where."""
    try:
        yield
    except OSError as error:
        kept = "finished shards are kept; run the same command again and it goes on from there"
        if error.errno in _FULL:
            raise UserError(f"disk full while {what} ({error.strerror}); free some space: {kept}") from error
        if error.errno in _READ_ONLY:
            raise UserError(
                f"not allowed while {what} ({error.strerror}); make the store writable or choose another root: {kept}"
            ) from error
        if isinstance(error, FileNotFoundError | NotADirectoryError | FileExistsError):
            raise UserError(
                f"missing while {what}: {error.filename or error} is gone or not a folder; "
                "if it was moved, point to its new place, else run the stage again to rebuild it"
            ) from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of any library says that the disk, or one's share of it, is full.

    safetensors and sqlite give it in words of their own.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(f"os error {code}" in str(error) for code in _FULL) or "disk is full" in str(error)


class LocalFiles:
    """A folder on a disk of this machine."""

    is_local = True

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).expanduser().absolute())

    def local(self, path: str) -> Path:
        """The path on disk."""
        return Path(self.root, path)

    def leaves(self, folder: str, path: str) -> bool:
        """Whether a file below a folder is not really there, by a symbolic link in its path or in its place."""
        return not self.local(path).resolve().is_relative_to(self.local(folder).resolve())

    def exists(self, path: str) -> bool:  # noqa: D102
        return self.local(path).exists()

    def children(self, path: str) -> list[str]:  # noqa: D102
        try:
            return sorted(os.listdir(self.local(path)))  # noqa: PTH208  (names are wanted, and are cheaper)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def walk(self, path: str) -> list[str]:  # noqa: D102
        return sorted(
            PurePosixPath(os.path.relpath(Path(folder, name), self.root)).as_posix()
            for folder, _, names in os.walk(self.local(path))
            for name in names
        )

    def size(self, path: str) -> int:  # noqa: D102
        with explain(f"reading {self.local(path)}"):
            return self.local(path).stat().st_size

    def stamp(self, path: str) -> Hashable | None:  # noqa: D102
        with explain(f"reading {self.local(path)}"):
            found = self.local(path).stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def open(self, path: str) -> IO[bytes]:  # noqa: D102
        with explain(f"reading {self.local(path)}"):
            return self.local(path).open("rb")

    def write(self, path: str, data: bytes) -> None:  # noqa: D102
        target = self.local(path)
        with explain(f"writing {target}"):
            make_folder(target.parent)
            # In the target's own folder, so that the rename stays on one file system; opened plainly, since
            # `tempfile` would make it readable by its owner alone, whatever the umask.
            temporary = target.with_name(f".{uuid4().hex}.tmp")
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def remove(self, path: str) -> None:  # noqa: D102
        target = self.local(path)
        with explain(f"removing {target}"):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            elif target.exists() or target.is_symlink():
                target.unlink()
            else:
                return
            sync_folder(target.parent)

    def rename(self, source: str, target: str) -> None:
        """Move a folder to a place where there is none yet, durably."""
        old, new = self.local(source), self.local(target)
        with explain(f"moving {old} to {new}"):
            make_folder(new.parent)
            apply_umask(old)
            for folder, _, names in os.walk(old):
                for name in names:
                    sync_file(Path(folder, name))
                sync_folder(Path(folder))
            old.rename(new)
            sync_folder(new.parent)
            sync_folder(old.parent)

    def scratch(self) -> Path:  # noqa: D102
        return Path(self.root)


class RemoteFiles:
    """A folder behind an fsspec URL."""

    is_local = False

    def __init__(self, root: str) -> None:
        import fsspec

        self.root = root.rstrip("/")
        try:
            self.filesystem, self._base = fsspec.core.url_to_fs(self.root)
        except (ValueError, ImportError) as error:
            raise UserError(f"store root {root}: {error}") from error
        # Object stores are written by other processes too, so listings must not come from a cache.
        self.filesystem.use_listings_cache = False

    def remote(self, path: str) -> str:
        """The path as fsspec takes it."""
        return f"{self._base}/{path}" if path else self._base

    def exists(self, path: str) -> bool:  # noqa: D102
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self.remote(path)))

    def children(self, path: str) -> list[str]:  # noqa: D102
        self.filesystem.invalidate_cache()
        try:
            listed = self.filesystem.ls(self.remote(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in listed)

    def walk(self, path: str) -> list[str]:  # noqa: D102
        self.filesystem.invalidate_cache()
        prefix = self._base.strip("/") + "/"
        return sorted(name.strip("/").removeprefix(prefix) for name in self.filesystem.find(self.remote(path)))

    def size(self, path: str) -> int:  # noqa: D102
        self.filesystem.invalidate_cache()
        with explain(f"reading {self.root}/{path}"):
            return int(self.filesystem.size(self.remote(path)))

    def stamp(self, path: str) -> Hashable | None:  # noqa: D102
        self.filesystem.invalidate_cache()
        with explain(f"reading {self.root}/{path}"):
            info = self.filesystem.info(self.remote(path))
        known = [str(info[key]) for key in ("ETag", "etag", "generation", "LastModified") if info.get(key)]
        return (info.get("size"), *known) if known else None

    def open(self, path: str) -> Any:  # noqa: D102
        with explain(f"reading {self.root}/{path}"):
            return self.filesystem.open(self.remote(path), "rb")

    def write(self, path: str, data: bytes) -> None:  # noqa: D102
        with explain(f"writing {self.root}/{path}"):
            self.filesystem.makedirs(self.remote(path).rsplit("/", 1)[0], exist_ok=True)
            self.filesystem.pipe_file(self.remote(path), data)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file here."""
        with explain(f"writing {self.root}/{path}"):
            self.filesystem.makedirs(self.remote(path).rsplit("/", 1)[0], exist_ok=True)
            self.filesystem.put_file(str(source), self.remote(path))

    def download(self, path: str, target: Path) -> None:
        """Copy a file of this root to a local place."""
        with explain(f"reading {self.root}/{path}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.filesystem.get_file(self.remote(path), str(target))

    def remove(self, path: str) -> None:  # noqa: D102
        with explain(f"removing {self.root}/{path}"), suppress(FileNotFoundError):
            self.filesystem.rm(self.remote(path), recursive=True)

    def scratch(self) -> Path:  # noqa: D102
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "grpo-pipeline" / hashlib.sha256(self.root.encode()).hexdigest()[:16]


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def apply_umask(folder: Path) -> None:
    """Let a folder's files be read as the umask says; safetensors makes its own readable by their owner alone."""
    # The umask itself can only be read by setting it, for every thread of the process.
    probe = folder / f".{uuid4().hex}.tmp"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and mode & ~path.stat().st_mode:
            path.chmod(path.stat().st_mode & 0o777 | mode)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
