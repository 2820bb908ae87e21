"""What can go wrong when launches are read and compared.

ContractError
├── InputInvalid     a file can't be used; names the file, the field and the remedy
└── NotComparable    both can be used, but they do not answer the same question
"""

from __future__ import annotations


class ContractError(ValueError):
    """Base of all."""


class InputInvalid(ContractError):
    """`field` is empty if the file as a whole is at fault."""

    def __init__(self, file: str, message: str, *, field: str = "", remedy: str) -> None:
        super().__init__(": ".join(part for part in (file, field, f"{message}; {remedy}") if part))
        self.file = file
        self.field = field
        self.remedy = remedy


class NotComparable(ContractError):
    """Both launches are whole, but a difference between them would mean nothing."""
