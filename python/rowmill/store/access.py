"""How this host identifies itself to storage nodes: the TOML file of its name and its keys."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = ("nqn", "key_file", "controller_key_file")


@dataclass(frozen=True)
class Access:
    """The name of this host, and the keys with which host and node authenticate (DH-HMAC-CHAP)."""

    name: str | None = None
    """NQN of this host. None: the name in `/etc/nvme/hostnqn`, or a random one."""
    key: str | None = None
    """Key of this host. None: the host does not authenticate."""
    controller_key: str | None = None
    """Key of the node. None: the node need not authenticate."""
    file: Path | None = None
    """The file that these settings come from, for messages of errors."""

    @classmethod
    def read(cls, file: Path | None) -> Access:
        """Read the file, and the files of keys that it names. Without a file, the default.

        Args:
            file: TOML file with `nqn`, `key_file` and `controller_key_file`, each optional. Paths are relative to it.

        Raises:
            InvalidInput: A file cannot be read, or a setting is unknown or not a string.
        """
        if file is None:
            return cls()
        try:
            given = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{file} is not a TOML file: {error}") from None
        except OSError as error:
            raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
        for name, value in given.items():
            if name not in _SETTINGS or not isinstance(value, str):
                raise InvalidInput(
                    f"{file}: the settings are the strings {', '.join(_SETTINGS)}, got {name} = {value!r}"
                )
        return cls(
            name=given.get("nqn"),
            key=_key(file, given, "key_file"),
            controller_key=_key(file, given, "controller_key_file"),
            file=file,
        )


def _key(file: Path, given: dict[str, str], name: str) -> str | None:
    if name not in given:
        return None
    try:
        return (file.parent / given[name]).read_text().strip()
    except OSError as error:
        raise InvalidInput(
            f"{file}: cannot read {name} {given[name]!r}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{file}: {name} {given[name]!r} is not a text file: name a file that nvme gen-dhchap-key wrote"
        ) from None
