"""`iterate_rl` on a Prefect server whose database is a real PostgreSQL (on Debian: apt-get install postgresql)."""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest

from tests.operations.conftest import end, free_port, overrides, start_server

PG_CTL = shutil.which("pg_ctl") or next((str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PG_CTL is None, reason="no PostgreSQL: apt-get install postgresql")]


def owner():
    """Whom PostgreSQL runs as: it refuses root."""
    return "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def database():
    """The address of an empty database on a free port of the loopback."""
    user, port = owner(), free_port()
    folder = Path(tempfile.mkdtemp())  # not pytest's folder, which other users may not enter
    if os.getuid() == 0:
        shutil.chown(folder, user)
    binaries = Path(PG_CTL).resolve().parent

    def command(*arguments):
        subprocess.run(arguments, cwd=folder, user=user, check=True, stdout=subprocess.DEVNULL, timeout=300)

    data = folder / "data"
    control = (PG_CTL, "-D", data, "-w", "-t", "240", "-l", folder / "log")
    command(binaries / "initdb", "-D", data, "-A", "trust", "-U", "prefect", "--no-sync")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
    command(*control, "-o", options, "start")
    try:
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        command(*control, "-m", "fast", "stop")
        shutil.rmtree(folder)


def rows(database, query):
    """What the database itself answers."""

    async def ask():
        connection = await asyncpg.connect(database.replace("+asyncpg", ""))
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return [tuple(row) for row in asyncio.run(ask())]


def test_the_loop_runs_on_postgresql(database, tmp_path, config):
    process, server = start_server(tmp_path, free_port(), PREFECT_SERVER_DATABASE_CONNECTION_URL=database)
    try:
        server.pipeline("setup-prefect")
        server.pipeline("iterate-rl", *overrides(config | {"name": "on-postgres", "rounds": 1}))
    finally:
        end(process)
    runs = rows(database, "select name, state_type::text from flow_run order by name")
    assert runs == [(name, "COMPLETED") for name in ("on-postgres", "on-postgres-round-0", "on-postgres-round-1")]
    assert rows(database, "select count(*) from artifact where key = 'on-postgres-rounds'") == [(2,)]
    assert not (tmp_path / "prefect" / "prefect.db").exists()
