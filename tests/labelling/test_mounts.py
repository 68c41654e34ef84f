"""File systems, read from a list of mounts as the kernel writes it."""

import logging

import pytest

from grpo_pipeline.labelling import ledger
from grpo_pipeline.labelling.mounts import network_filesystem

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw
31 30 0:41 / /home/ann/local\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/box rw - fuse.sshfs me@box:/ rw
33 22 0:43 / /data rw - nfs server:/data rw
34 22 254:1 / /data rw - ext4 /dev/vdc rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/srv/runs", None),
        ("/home/ann/runs", "nfs4"),
        ("/homework", None),
        ("/home/ann/local disk/runs", None),
        ("/mnt/box", "sshfs"),
        ("/data/runs", None),
    ],
)
def test_the_innermost_and_latest_mount_counts(folder, expected, tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_filesystem(type(tmp_path)(folder), mounts) == expected


def test_unknown_is_local(tmp_path):
    assert network_filesystem(tmp_path, tmp_path / "none") is None
    assert network_filesystem(tmp_path) is None


def test_a_ledger_on_a_network_file_system_warns(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ledger, "network_filesystem", lambda folder: "nfs4")
    with caplog.at_level(logging.WARNING), ledger.Ledger(tmp_path / "there"):
        pass
    assert "nfs4" in caplog.text
    assert "one machine" in caplog.text
