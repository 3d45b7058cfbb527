"""Errors of the registry, as clients of Confluent's API see them.

Belongs here: the error with its HTTP status, code and text, and one function for each code that clients know.

Source: Confluent's documentation, "Schema Registry API Reference", "Errors".
"""

from __future__ import annotations


class RegistryError(Exception):
    """Raised for a request that fails. `code`: of the body; its first three digits are the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return int(str(self.code)[:3])


def no_subject(subject: str) -> RegistryError:
    """Return the error for a subject that has no version."""
    return RegistryError(40401, f"Subject '{subject}' not found.")


def no_version(version: int) -> RegistryError:
    """Return the error for a version that a subject does not have."""
    return RegistryError(40402, f"Version {version} not found.")


def no_schema(number: int | None = None) -> RegistryError:
    """Return the error for an id, or a definition, that is not registered."""
    return RegistryError(40403, "Schema not found" if number is None else f"Schema {number} not found")


def is_deleted(subject: str, version: int | None = None) -> RegistryError:
    """Return the error for a second deletion that does not say `permanent`."""
    what = f"Subject '{subject}'" if version is None else f"Subject '{subject}' Version {version}"
    code = 40404 if version is None else 40406
    return RegistryError(code, f"{what} was soft deleted. Set permanent=true to delete permanently")


def not_deleted(subject: str, version: int | None = None) -> RegistryError:
    """Return the error for a permanent deletion without one before it."""
    what = f"Subject '{subject}'" if version is None else f"Subject '{subject}' Version {version}"
    code = 40405 if version is None else 40407
    return RegistryError(code, f"{what} was not deleted first before being permanently deleted")


def no_setting(subject: str, name: str) -> RegistryError:
    """Return the error for a subject without a compatibility or mode of its own."""
    code = 40408 if name == "compatibility" else 40409
    return RegistryError(code, f"Subject '{subject}' does not have subject-level {name} configured")


def bad_schema(text: str) -> RegistryError:
    """Return the error for a definition that is no schema, or exceeds a limit."""
    return RegistryError(42201, f"Invalid schema: {text}")


def bad_version(text: str) -> RegistryError:
    """Return the error for a path that names no version."""
    return RegistryError(
        42202,
        f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def bad_subject(subject: str, why: str) -> RegistryError:
    """Return the error for a subject that cannot exist here."""
    return RegistryError(42208, f"The specified subject '{subject[:200]}' is not a valid subject: {why}")


def not_permitted(text: str) -> RegistryError:
    """Return the error for a write that the mode forbids."""
    return RegistryError(42205, text)


def is_referenced(subject: str, version: int) -> RegistryError:
    """Return the error for the deletion of a version that others refer to."""
    return RegistryError(42206, f"One or more references exist to the schema {subject} version {version}")


def incompatible(subject: str, conflicts: list[str]) -> RegistryError:
    """Return the error for a version that cannot follow the others."""
    details = "; ".join(conflicts)
    return RegistryError(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: [{details}]',
    )


def forbidden(subject: str) -> RegistryError:
    """Return the error for a user who may not publish to a subject of the API."""
    return RegistryError(40301, f"User is denied this operation: it needs permission to publish to {subject}")


def unavailable(text: str) -> RegistryError:
    """Return the error for a store that does not answer."""
    return RegistryError(50001, f"Error in the backend datastore: {text}")
