"""How rows can break the format, one class per rule."""

from __future__ import annotations

from dflash.draftfile.errors import DataError


class NullValue(DataError):
    """A value that must be there is null."""


class KindUnknown(DataError):
    """A row of no known kind."""


class ListLength(DataError):
    """The lists of a row do not fit each other."""


class ParentOrder(DataError):
    """A node stands before its parent."""


class AcceptedPath(DataError):
    """The accepted nodes are not a path from the anchor."""


class TokenRange(DataError):
    """A token id outside the padded vocabulary."""


class SourceRange(DataError):
    """A node of a drafter that the header does not name."""


class NotFinite(DataError):
    """NaN, or an infinity where none may be."""


class TruncationUnknown(DataError):
    """A `truncated_by` that the format does not have."""


class RequestSplit(DataError):
    """The rows of a request do not stand together in one row group."""


class RowOrder(DataError):
    """The rows of a request are out of order."""
