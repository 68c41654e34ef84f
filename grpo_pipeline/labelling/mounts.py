"""Which kind of file system a folder is on: shared memory between processes works on local ones only."""

from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "orangefs"}
)


def network_filesystem(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """The kind of network file system that a folder is on; None for a local one, or where that is not known.

    Args:
        folder: An existing folder.
        mounts: The system's list of mounts (see proc_pid_mountinfo(5)).
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    target = folder.resolve()
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, types = left.split(), right.split()
        if len(fields) < 5 or not types:
            continue
        # Blanks in a mount point are written as octal escapes.
        point = Path(fields[4].replace("\\040", " "))
        # Later mounts hide earlier ones at the same place.
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), types[0]
    kind = kind.removeprefix("fuse.")
    return kind if kind in _NETWORK or kind in ("sshfs", "s3fs", "gcsfuse") else None
