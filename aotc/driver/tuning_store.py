# SPDX-License-Identifier: Apache-2.0
"""Store measured tilings of contractions in an SQLite file that several processes can share.

store = TuningStore(user_tuning_store_path())        # $AOTC_TUNING_STORE, else tuning.sqlite in the cache's folder
store.write_records([TuningRecord(signature, cpu, "lanes axis=1 vectors=2 lanes=16", 1.2e-5, 8)])
store.read_records_by_signature(cpu)                 # {signature: Record}

Reading never creates a file.  A corrupt SQLite file is renamed with a warning, and the next write
creates a new one.  A file that is not SQLite is never changed: writing to it is an error.  The file
need not be trusted: a database with other tables, views or triggers is not read, and records that
no measurement can produce are ignored.
"""

import logging
import math
import os
import platform
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import Final

from aotc.driver.object_cache import cache_folder, sha256_of_parts
from aotc.driver.toolchain import cpuinfo_field
from aotc.ir import AotcError, frozen, option_text, text_for_command_or_python
from aotc.tir.schedule.contraction.tiling_choice import TilingSite

LOG = logging.getLogger("aotc")
#: Largest number of records (about 5 MB); the oldest are deleted beyond it.
MAX_RECORDS: Final = 20_000
#: Exceptions of sqlite3 for a corrupt file; UnicodeDecodeError comes from composing the message.
_CORRUPT_FILE_EXCEPTIONS: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
#: Largest number of corrupt files that are renamed and retained.
_MAX_CORRUPT_FILES: Final = 100
#: The first bytes of an SQLite file.
_SQLITE_SIGNATURE: Final = b"SQLite format 3\0"
#: Time in seconds to wait for another process that writes to the file.
_LOCK_WAIT_SECONDS: Final = 20.0
_CREATE_TABLE_SQL: Final = """CREATE TABLE tilings (signature TEXT, cpu TEXT, candidate TEXT, seconds REAL,
    trials INTEGER, written REAL, PRIMARY KEY (signature, cpu)) WITHOUT ROWID"""
#: `TuningRecord.cpu` of records for GPUs, which apply to compilations for a target with a GPU on any machine:
#: the signature of a contraction includes the target.
GPU_PROCESSOR: Final = "gpu"
#: Largest number of characters of a text in a record.
_MAX_TEXT_CHARACTERS: Final = 1000


@frozen
class TuningRecord:
    """The fastest tiling measured for a contraction on a processor.

    signature    identifies the contraction (`aotc.tir.schedule.contraction.tiling_choice`)
    cpu          name of the CPU, see `cpu_model_name`; `GPU_PROCESSOR` for GPUs
    candidate    the tiling as text (`aotc.tir.schedule.contraction.tiling_choice`)
    seconds      time of one call
    trials       number of candidates measured
    """

    signature: str
    cpu: str
    candidate: str
    seconds: float
    trials: int

    @property
    def has_valid_tuning_values(self) -> bool:
        """Return True if the types and values are possible results of a measurement: SQLite does
        not enforce types.
        """
        texts = (self.signature, self.cpu, self.candidate)
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT_CHARACTERS for text in texts):
            return False
        return type(self.seconds) is float and 0 < self.seconds < math.inf and type(self.trials) is int


def cpu_model_name() -> str:
    """Return the name of the processor: "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz"."""
    return cpuinfo_field("model name") or platform.processor() or platform.machine()


def user_tuning_store_path() -> Path | None:
    """Return the path of the user's tuning records; None if there is no folder for them."""
    if given := os.environ.get("AOTC_TUNING_STORE"):
        return Path(given)
    folder = cache_folder()
    return folder / "tuning.sqlite" if folder is not None else None


def require_tuning_store_exists(path: Path) -> None:
    """Raise AotcError (code "tuning") unless `path`, which the caller names as the file of tuning
    records, is a file.
    """
    if not path.is_file():
        tune = text_for_command_or_python(command="`aotc tune`", python="aotc.measuring.tuning.tune_contractions")
        hint = tune + " writes tuning records; " + option_text("tuning", False) + " compiles without any"
        raise AotcError("tuning", f"the file of tuning records {str(path)!r} does not exist", hint=hint)


class TuningStore:
    """The store of tuning records: an SQLite file, which is created by the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_records_by_signature(self, *processors: str) -> Mapping[str, TuningRecord]:
        """Return the records of some processors, values of `TuningRecord.cpu`, by signature; empty, with a
        warning, if the file cannot be read.
        """
        inode = self._store_file_inode()
        if inode is None:
            return {}
        places = ", ".join("?" * len(processors))
        columns = "signature, cpu, candidate, seconds, trials"
        query = f"SELECT {columns} FROM tilings WHERE cpu IN ({places}) LIMIT {MAX_RECORDS}"
        try:
            with closing(self._open_database()) as base:
                _has_tilings_table_or_raise_if_not_empty(base)
                records = [TuningRecord(*row) for row in base.execute(query, processors)]
            sound = {record.signature: record for record in records if record.has_valid_tuning_values}
            if unsound := len(records) - len(sound):
                LOG.warning("%d tuning records in %s are ignored: no measurement gives such", unsound, self.path)
            return sound
        except sqlite3.OperationalError as error:
            # locked, not readable, or with the tables of another program
            LOG.warning("the tuning records in %s are ignored: %s", self.path, error)
        except _CORRUPT_FILE_EXCEPTIONS as error:
            try:
                self._rename_corrupt_tuning_store(inode, error)
            except sqlite3.OperationalError as problem:
                LOG.warning("the tuning records in %s are ignored: %s", self.path, problem)
        return {}

    def write_records(self, records: Iterable[TuningRecord]) -> None:
        """Write tuning records, replacing those of equal signature and CPU; raise AotcError (code
        "tuning") on failure.

        The oldest records beyond `MAX_RECORDS` are deleted, and a corrupt file is renamed first.
        """
        rows = [(*astuple(record), time.time()) for record in records]
        inode = self._store_file_inode()
        try:
            try:
                self._insert_tuning_rows_and_delete_oldest(rows)
            except sqlite3.OperationalError:
                raise
            except _CORRUPT_FILE_EXCEPTIONS as error:
                self._rename_corrupt_tuning_store(inode, error)
                self._insert_tuning_rows_and_delete_oldest(rows)
        except (OSError, *_CORRUPT_FILE_EXCEPTIONS) as error:
            hint = "name another file with AOTC_TUNING_STORE"
            raise AotcError("tuning", f"cannot write tuning records to {self.path}: {error}", hint=hint) from error

    def _insert_tuning_rows_and_delete_oldest(self, rows: Iterable[tuple[object, ...]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(self._open_database()) as base:
            base.execute("PRAGMA journal_mode = WAL")
            with base:
                base.execute("BEGIN IMMEDIATE")
                if not _has_tilings_table_or_raise_if_not_empty(base):
                    base.execute(_CREATE_TABLE_SQL)
                base.executemany("INSERT OR REPLACE INTO tilings VALUES (?, ?, ?, ?, ?, ?)", rows)
                cutoff_query = "SELECT written FROM tilings ORDER BY written DESC LIMIT 1 OFFSET ?"
                base.execute(f"DELETE FROM tilings WHERE written <= ({cutoff_query})", (MAX_RECORDS,))

    def _open_database(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, timeout=_LOCK_WAIT_SECONDS)
        base.execute("PRAGMA trusted_schema = OFF")
        return base

    def _store_file_inode(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _rename_corrupt_tuning_store(self, inode: int | None, error: Exception) -> None:
        """Rename a corrupt file, unless another process has replaced it since (its inode differs
        from `inode`).
        """
        if inode is None or inode != self._store_file_inode():
            return
        if not self._is_store_file_sqlite_database():
            raise sqlite3.OperationalError("it is no SQLite file") from error
        ends = ("", *(f".{k}" for k in range(1, _MAX_CORRUPT_FILES)))
        names = (self.path.with_name(f"{self.path.name}.corrupt{end}") for end in ends)
        aside = next((name for name in names if not os.path.lexists(name)), None)
        if aside is None:
            raise sqlite3.OperationalError("it is corrupt, as many before it") from error
        LOG.warning("the tuning store %s is corrupt (%s): it is moved to %s and begun anew", self.path, error, aside)
        with suppress(OSError):
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                log = self.path.with_name(self.path.name + suffix)
                if log.exists():
                    log.rename(aside.with_name(aside.name + suffix))

    def _is_store_file_sqlite_database(self) -> bool:
        """Return True if the store's file begins with the SQLite signature."""
        with suppress(OSError), self.path.open("rb") as file:
            return file.read(len(_SQLITE_SIGNATURE)) == _SQLITE_SIGNATURE
        return False


def _has_tilings_table_or_raise_if_not_empty(database: sqlite3.Connection) -> bool:
    """Return True if the table of tilings exists, False for an empty database.

    Raise sqlite3.OperationalError for any other schema: views in an untrusted file could run
    forever.
    """
    schemas = [row[0] for row in database.execute("SELECT sql FROM sqlite_master")]
    if schemas not in ([], [_CREATE_TABLE_SQL]):
        raise sqlite3.OperationalError("it holds other tables than records of tilings")
    return bool(schemas)


class RecordedTilings:
    """Chooser of tilings for `aotc.tir.schedule.contraction.tiling_choice`: the tiling recorded for
    this CPU, or for GPUs, if any.

    tuning    file of records; None for the user's file, False for no records.  Read at the first
    contraction
    """

    def __init__(self, tuning: str | Path | bool | None) -> None:
        store_path = user_tuning_store_path() if tuning is None or tuning is True else tuning
        self._path = Path(store_path) if store_path else None

    @cached_property
    def records_by_signature(self) -> Mapping[str, TuningRecord]:
        """The tuning records of this machine's CPU and of GPUs, by the signature of the contraction."""
        if self._path is None:
            return {}
        return TuningStore(self._path).read_records_by_signature(cpu_model_name(), GPU_PROCESSOR)

    @property
    def digest(self) -> str:
        """A hash of all recorded tilings, which is part of the keys of cached kernels."""
        return sha256_of_parts(
            *(
                part
                for key in sorted(self.records_by_signature)
                for part in (key, self.records_by_signature[key].candidate)
            )
        )

    def __call__(self, site: TilingSite) -> str | None:
        record = self.records_by_signature.get(site.contraction_fingerprint) if self.records_by_signature else None
        return record.candidate if record is not None else None
