"""A file that appears whole or not at all: exclusive partial, fsync, publish without replacing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from dflash.draftfile.errors import FolderNotWritable, OutputBusy, OutputExists, OutputIsFolder, WriteFailed

NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}


def beside(path: Path, suffix: str) -> Path:
    """The sibling of a path: `run.parquet` and `.partial` give `run.parquet.partial`."""
    return path.with_name(path.name + suffix)


class Publication:
    """`X.partial`, held under a lock until it becomes `X` or goes away.

    Args:
        path: Where the file will appear.
        overwrite: Replace what is there already.

    Raises:
        OutputExists: The path exists and may not be replaced.
        OutputIsFolder: The path is a folder.
        OutputBusy: Another writer holds the path.
        FolderNotWritable: The folder is missing or refuses new files.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path, self.overwrite = path, overwrite
        self._refuse_existing()
        self.partial = beside(path, ".partial")
        if not path.parent.is_dir():
            raise FolderNotWritable(path.parent, "there is no such folder")
        self._lock = FileLock(beside(path, ".lock"))
        self._acquire()
        try:
            self._refuse_existing()
            self.partial.unlink(missing_ok=True)
            self.file: BinaryIO = self.partial.open("x+b")
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise FolderNotWritable(path.parent, error.strerror or str(error)) from error
            raise

    def publish(self) -> None:
        """Makes the partial durable and gives it its name.

        Raises:
            OutputExists: Another file took the name meanwhile; the partial stays for the caller to discard.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self._rename()
        sync_folder(self.path.parent)
        self.file.close()
        self._release()

    def discard(self) -> None:
        """Deletes the partial; nothing is published. Harmless after `publish`."""
        if self._lock.is_locked:
            # a full disk fails once more when the last buffer is flushed, and the file is closed all the same
            with suppress(OSError):
                self.file.close()
            self.partial.unlink(missing_ok=True)
            self._release()

    def _refuse_existing(self) -> None:
        if self.path.is_dir():
            raise OutputIsFolder(self.path)
        if not self.overwrite and os.path.lexists(self.path):
            raise OutputExists(self.path)

    def _acquire(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            # where no file can be made, the lock waits for one as if another process held it
            if not os.path.lexists(self._lock.lock_file):
                raise FolderNotWritable(self.path.parent, "no file can be made there") from error
            raise OutputBusy(self.path) from error
        except OSError as error:
            raise FolderNotWritable(self.path.parent, error.strerror or str(error)) from error

    def _release(self) -> None:
        # the name goes while the lock is held: a waiting process notices and locks a new file
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def _rename(self) -> None:
        if self.overwrite:
            self.partial.replace(self.path)
            return
        try:
            os.link(self.partial, self.path)
        except FileExistsError as error:
            raise OutputExists(self.path) from error
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            self._rename_over_claim()
        else:
            self.partial.unlink()

    def _rename_over_claim(self) -> None:
        """For file systems without hard links: claim the name first, then replace the own claim."""
        try:
            self.path.open("xb").close()
        except FileExistsError as error:
            raise OutputExists(self.path) from error
        self.partial.replace(self.path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tells a full disk, or any other failure to write, in words.

    Raises:
        WriteFailed: The system refused to write.
    """
    try:
        yield
    except OSError as error:
        # Arrow's files have longer words for it
        words = os.strerror(error.errno) if error.errno else error.strerror
        raise WriteFailed(path, words or str(error)) from error


@contextmanager
def whole_file(path: Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A file to fill, which then appears whole; if anything fails, it never does.

    Raises:
        OutputExists, OutputIsFolder, OutputBusy, FolderNotWritable: see `Publication`.
        WriteFailed: The system refused to write.
    """
    publication = Publication(path, overwrite=overwrite)
    try:
        with writing(path):
            yield publication.file
            publication.publish()
    finally:
        publication.discard()


def sync_folder(folder: Path) -> None:
    """Makes a new name in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
