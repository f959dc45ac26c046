# SPDX-License-Identifier: Apache-2.0
"""Read exported programs from .pt2 files as data: nothing in the file is unpickled, loaded as a
library or evaluated.

Input: a file that torch.export.save wrote. Output: an ExportedProgram without example inputs.

    program = load_exported("net.pt2")

A .pt2 file is an uncompressed zip archive. It contains the program as JSON (checked by
`pt2_validation`), the raw values of parameters and constants with a table of their shapes, and
example inputs as a pickle, which is not read. Files that need a pickle (older versions, tensor
subclasses, custom objects) are refused.
"""

import json
import logging
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import torch
from torch._export.serde import schema, serialize

from aotc.ir import AotcError, open_regular_file
from aotc.relay.frontend.pytorch.pt2_validation import PAYLOADS, Refused, refuse_unless, validate_exported_program

_LOG: Final = logging.getLogger(__name__)
_SAVE_AGAIN: Final = (
    "where you trust the file, load it with torch.export.load and pass the program to aotc, or save it again with a"
    " newer torch.export.save"
)
_LOAD_SCRIPT: Final = (
    "load it with torch.jit.load where you trust it, and pass the module to aotc.relay.frontend.from_pytorch"
)
#: PyTorch's number of the layout of dense, strided tensors.
_STRIDED_LAYOUT_CODE: Final = 7


def load_exported(path: str | Path) -> Any:
    """Read the exported program in a .pt2 file. Raises AotcError (code "torch-file") if the file
    does not exist or does not contain an exported program.
    """
    open_regular_file(path, "torch-file").close()
    try:
        with closing(_Archive(Path(path))) as archive:
            return _read_exported_program(archive)
    except Refused as error:
        hint = error.hint or "torch.export.save(program, path) writes one"
        raise AotcError("torch-file", f"{path} cannot be read as an exported program: {error}", hint=hint) from error


class _Archive:
    """The records of a zip archive by name, without the name of their common folder. Raises Refused
    if the file is not a zip archive.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = zipfile.ZipFile(path)
        except OSError as error:
            raise Refused(error.strerror or "it cannot be opened") from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise Refused("it is no zip archive, or is incomplete") from error
        self._records = {info.filename.partition("/")[2] or info.filename: info for info in self._file.infolist()}
        self._size = path.stat().st_size

    def check_uncompressed_records(self) -> None:
        """Raise Refused unless the records of the zip archive are uncompressed and have distinct
        names, so that reading them takes no more memory than the file.
        """
        infos = self._file.infolist()
        plain = all(i.compress_type == zipfile.ZIP_STORED and not i.flag_bits & 1 for i in infos)
        refuse_unless(len(infos) == len(self._records), "records of its archive have the same name")
        refuse_unless(plain, "its archive is compressed or encrypted; torch writes plain ones")
        size = sum(i.file_size for i in infos)
        refuse_unless(size <= self._size, "the records of its archive are larger than the file")

    def close(self) -> None:
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def read_record(self, name: str) -> bytes:
        """Return the bytes of a record of the zip archive. Raises Refused if it is missing or
        damaged.
        """
        refuse_unless(name in self._records, f"it has no record {name!r}")
        try:
            return self._file.read(self._records[name])
        except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
            raise Refused(f"its record {name!r} is damaged") from error

    def read_json_record(self, name: str) -> Any:
        """Return the parsed JSON of a record of the zip archive. Raises Refused if it is not JSON."""
        try:
            return json.loads(self.read_record(name))
        except (ValueError, RecursionError) as error:
            raise Refused(f"its record {name!r} is no JSON") from error


def _check_archive_is_loadable_pt2(archive: _Archive) -> None:
    """Raise Refused if an archive is not a .pt2 file but another kind of PyTorch file, such as
    TorchScript, if it needs a pickle, or if its byte order differs from this machine's.
    """
    pickled = "serialized_exported_program.json" in archive
    text = "it was written by torch 2.7 or older, as a pickle, which could run code"
    refuse_unless(not pickled, text, _SAVE_AGAIN)
    script = "constants.pkl" in archive
    refuse_unless(not script, "it is a TorchScript archive, which holds pickles", _LOAD_SCRIPT)
    pickled = "data.pkl" in archive
    refuse_unless(not pickled, "it is a pickle that torch.save wrote, which could run code")
    archive.check_uncompressed_records()
    ours = "archive_format" in archive and archive.read_record("archive_format") == b"pt2"
    refuse_unless(ours, "it is no archive of torch.export.save")
    order: str = sys.byteorder
    if "byteorder" in archive:
        order = archive.read_record("byteorder").decode("ascii", "replace")
    text = "its values are in another order of bytes than this machine's"
    refuse_unless(order == sys.byteorder, text)


def _read_exported_program(archive: _Archive) -> Any:
    _check_archive_is_loadable_pt2(archive)
    clean = validate_exported_program(archive.read_json_record("models/model.json"))
    stated = clean["schema_version"]
    ours = ".".join(map(str, schema.SCHEMA_VERSION))
    text = "it has the schema {major}.{minor}; torch {0} reads {1}".format(torch.__version__, ours, **stated)
    refuse_unless(stated["major"] == schema.SCHEMA_VERSION[0], text, _SAVE_AGAIN)
    state = _read_tensors(archive, "data/weights/", "model_weights_config.json")
    constants = _read_tensors(archive, "data/constants/", "model_constants_config.json")
    try:
        program = serialize._dict_to_dataclass(schema.ExportedProgram, clean)
        return serialize.ExportedProgramDeserializer().deserialize(program, state, constants, None)
    except Exception as error:
        # torch raises various exceptions for inconsistent programs
        _LOG.debug("torch cannot build the program", exc_info=True)
        raise Refused("its graph contradicts itself") from error


def _read_tensors(archive: _Archive, folder: str, config: str) -> dict[str, torch.Tensor]:
    """Return the parameters or constants in a .pt2 archive by name; tensors that share values in
    the file share memory.
    """
    text = "an older torch wrote its parameters as a pickle, which could run code"
    refuse_unless(f"{folder}model.pt" not in archive, text, _SAVE_AGAIN)
    stated = archive.read_json_record(f"{folder}{config}")
    payloads = PAYLOADS(stated.get("config") if isinstance(stated, dict) else None, f"{folder}{config}")
    values: dict[str, bytearray] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, payload in payloads.items():
        meta, path = payload["tensor_meta"], f"{folder}{payload['path_name']}"
        if payload["use_pickle"] or meta is None:
            hint = "export it with parameters and constants that are plain tensors"
            raise Refused(f"{name} is kept as a pickle, which could run code", hint)
        if path not in values:
            values[path] = bytearray(archive.read_record(path))
        tensors[name] = _strided_tensor_from_bytes(name, values[path], meta, payload["is_param"])
    return tensors


def _strided_tensor_from_bytes(name: str, values: bytearray, meta: dict[str, Any], is_param: bool) -> torch.Tensor:
    """Return a tensor as a strided view of raw bytes. Raises Refused if its shape does not fit
    them.
    """
    numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
    plain = meta["layout"] == _STRIDED_LAYOUT_CODE and all("as_int" in number for number in numbers)
    refuse_unless(plain, f"{name} is no plain tensor of a fixed shape")
    sizes, strides = ([number["as_int"] for number in meta[key]] for key in ("sizes", "strides"))
    try:
        dtype = serialize.deserialize_scalar_type(schema.ScalarType(meta["dtype"]))
        flat = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
        tensor = flat.as_strided(sizes, strides, meta["storage_offset"]["as_int"])
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise Refused(f"the shape of {name} does not fit its {len(values)} bytes") from error
    return torch.nn.Parameter(tensor, requires_grad=False) if is_param else tensor
