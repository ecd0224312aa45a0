"""Read what ``torch.save`` wrote: zip archives, and the pickles from before PyTorch 1.6.

A zip archive is checked before it is read: its pickle must run no code, and its records must match
their checksums, which PyTorch itself does not compare. Then PyTorch maps the archive into memory.
Files from before PyTorch 1.6 have no checksums and cannot be mapped; the sizes of their parts are
compared.
"""

from __future__ import annotations

import io
import mmap
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointDamagedError, CheckpointError, UnsafeFileError
from ...regular_file import open_regular
from .pickle_scan import check_weights_only, scan_pickle

ZIP_START = b"PK\x03\x04"
LEGACY_START = b"\x80\x02\x8a\x0a"  # protocol 2, then a number of 10 bytes: PyTorch's magic number
TAR_MARK = (257, b"ustar")  # where every tar archive has its mark
# What shows that a zip archive holds something else than tensors: the end of a record's name.
_OTHER_ARCHIVES = {
    "/constants.pkl": (
        "a TorchScript archive, which holds a program. If you trust it, load it with "
        "torch.jit.load and save its state_dict()"
    ),
    "/.data/extern_modules": (
        "an archive of torch.package, which holds a program. If you trust it, load it with "
        "torch.package.PackageImporter and save the state_dict() of its model"
    ),
    "/archive_format": (
        "an archive of torch.export, which holds a program. If you trust it, load it with "
        "torch.export.load and save its state_dict"
    ),
    ".npy": (
        "an archive of NumPy arrays (.npz). Load it with numpy.load, and save the arrays as "
        "tensors: torch.save({name: torch.from_numpy(each) for name, each in arrays.items()}, path)"
    ),
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PICKLES = 5  # magic number, version, system, the object, keys of the storages
_CHUNK_BYTES = 1 << 20


def read_torch_file(path: Path, *, is_checked: bool = True) -> Any:
    """Return the object in a torch file, with its tensors on the CPU.

    Args:
        path: the file.
        is_checked: compare checksums, which reads the whole file once more.

    Raises:
        UnsafeFileError: the file would run code.
        CheckpointDamagedError: the file is truncated or altered.
    """
    with open_regular(path, follow_links=True) as file:
        head = file.read(512)
    if head.startswith(ZIP_START):
        if path.name.endswith(".safetensors"):
            # torch.load would choose its reader by this name.
            raise CheckpointError(
                f"{path} is a torch file, although its name ends with .safetensors; rename it"
            )
        with open_regular(path, follow_links=True) as file, io.BufferedReader(file) as buffered:
            _check_archive(buffered, str(path), is_checked=is_checked)
        return _load(path, str(path), map_location="cpu", mmap=True)
    if head.startswith(LEGACY_START):
        return _read_legacy(path)
    raise CheckpointDamagedError(f"{path} is not a torch file: it begins with {head[:8]!r}")


def read_torch_stream(stream: io.BufferedIOBase, where: str) -> Any:
    """Return the object in a torch file that is part of another file.

    Args:
        stream: the torch file, which must be a zip archive.
        where: a description for messages.

    Raises:
        UnsafeFileError: it would run code.
        CheckpointDamagedError: it is truncated or altered.
    """
    _check_archive(stream, where, is_checked=True, in_folder=True)
    stream.seek(0)
    return _load(stream, where, map_location="cpu")


def _check_archive(
    source: io.BufferedIOBase, where: str, *, is_checked: bool, in_folder: bool = False
) -> None:
    try:
        with zipfile.ZipFile(source) as archive:
            records = archive.infolist()
            pickle_name = _find_pickle([each.filename for each in records], where)
            _check_records(archive, records, where, is_checked=is_checked)
            content = archive.read(pickle_name)
    except (CheckpointError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile raises many kinds for damaged archives
        raise _damaged(where, error) from None
    check_weights_only(scan_pickle(io.BytesIO(content), where), where, in_folder=in_folder)


def _find_pickle(names: list[str], where: str) -> str:
    """Return the record with the pickle of a torch file; raise for archives of other kinds."""
    for suffix, description in _OTHER_ARCHIVES.items():
        if any(name.endswith(suffix) for name in names):
            kind = CheckpointError if suffix == ".npy" else UnsafeFileError
            raise kind(f"{where} is not read: it is {description}")
    pickles = [name for name in names if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        shown = ", ".join(sorted(names)[:4]) or "none"
        raise CheckpointDamagedError(
            f"{where} is a zip archive, but not from torch.save: it has {len(pickles)} records "
            f"named data.pkl, not one. Its records are {shown}"
        )
    return pickles[0]


def _check_records(
    archive: zipfile.ZipFile, records: list[zipfile.ZipInfo], where: str, *, is_checked: bool
) -> None:
    """Check the records of an archive against its directory and, if asked, their checksums."""
    if len({each.filename for each in records}) < len(records):
        raise CheckpointDamagedError(f"{where} is damaged: it has two records of one name")
    if packed := [each.filename for each in records if each.compress_type != zipfile.ZIP_STORED]:
        raise CheckpointDamagedError(
            f"{where} is damaged, or was packed again: its record {packed[0]} is compressed, and "
            "torch.save compresses nothing. Unpack and store it without compression"
        )
    total_bytes = sum(each.file_size for each in records)
    if archive.fp is None or total_bytes > archive.fp.seek(0, io.SEEK_END):
        raise CheckpointDamagedError(
            f"{where} is damaged: its records take {total_bytes} bytes, more than the file has"
        )
    if not any(each.CRC for each in records):
        # Written after torch.serialization.set_crc32_options(False): there are no checksums.
        for each in records:
            each.CRC = None  # type: ignore[assignment]  # zipfile then compares none
    elif is_checked:
        for each in records:
            with archive.open(each) as record:  # raises at the end if the checksum differs
                while record.read(_CHUNK_BYTES):
                    pass


def _read_legacy(path: Path) -> Any:
    """Return the object in a file from before PyTorch 1.6."""
    where = str(path)
    size_bytes = path.stat().st_size
    with (
        open_regular(path, follow_links=True) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        for number in range(_LEGACY_PICKLES):
            scan = scan_pickle(mapped, where)
            if number == 0 and scan.first_value != _LEGACY_MAGIC:
                raise refuse_plain_pickle(path)
            check_weights_only(scan, where)
        storages_start = mapped.tell()
    storages: list[torch.UntypedStorage] = []

    def keep_on_cpu(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        storages.append(storage)
        return storage

    found = _load(path, where, map_location=keep_on_cpu)
    # The length of each storage precedes it. A storage that the file names but does not hold would
    # contain whatever its memory held before.
    expected_bytes = storages_start + sum(8 + each.nbytes() for each in storages)
    if expected_bytes != size_bytes:
        raise CheckpointDamagedError(
            f"{where} is damaged: its tensors need {expected_bytes} bytes, but the file has "
            f"{size_bytes}. Copy or download it again"
        )
    return found


def refuse_plain_pickle(path: Path) -> CheckpointError:
    """Return the error for a pickle that ``torch.save`` did not write."""
    with open_regular(path, follow_links=True) as file, io.BufferedReader(file) as buffered:
        scan = scan_pickle(buffered, str(path))
    wanted = ", ".join(sorted(scan.names)[:20]) or "no class"
    return UnsafeFileError(
        f"{path} is not read: it is an ordinary pickle, not a torch file, and a pickle can run any "
        f"code. It imports {wanted}. Nothing was run. If you trust it, load it with pickle.load "
        "and save its tensors with torch.save"
    )


def _load(source: Path | io.BufferedIOBase, where: str, **options: Any) -> Any:
    """Call ``torch.load``; every failure becomes an error of anyrig."""
    try:
        with warnings.catch_warnings():
            # From PyTorch 2.14 on, torch.load warns that checking sparse tensors takes time. With
            # ``python -W error``, the file would seem damaged.
            warnings.filterwarnings("ignore", "Validating sparse tensor invariants", UserWarning)
            return torch.load(source, weights_only=True, **options)  # type: ignore[arg-type]
    except (FileNotFoundError, PermissionError):
        raise
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[2] or str(error)
        raise UnsafeFileError(
            f"{where} is not read: PyTorch's weights_only reader refuses it. Nothing was run.\n"
            f"{reason.strip()}"
        ) from None
    except Exception as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: Exception) -> CheckpointDamagedError:
    problem = (str(error).strip() or "no message").splitlines()[0]
    return CheckpointDamagedError(
        f"{where} is damaged: {type(error).__name__}: {problem}. Copy or download it again"
    )
