"""Description of a cloud.

Belongs here: what object_storage.py, Spark, deltalake and DuckDB ask about a cloud. s3.py, gcs.py and azure.py answer;
known.py finds the one of a URL. Credentials are in no answer: each client finds them in its environment or from its
instance.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Environment = Mapping[str, str]
TRUE = ("1", "true", "yes", "on", "y")
"""Values of a variable that mean yes, as object_store takes them."""


class Cloud(ABC):
    """A cloud. Every answer follows from the environment, `os.environ` where it is not given.

    Attributes:
        name: of the packages of JARs (lakestream_spark/pins.py).
        scheme: of canonical URLs.
        revision: of obstore's identifiers of an object's content, the one that conditional writes compare.
        credentials: the variables and other sources of credentials, for messages.
        absent: words by which an error of obstore means that there are no credentials.
        insecure: the variable that permits an endpoint without TLS.
        address: the variables with which a store is reached, for messages.
    """

    name: ClassVar[str]
    scheme: ClassVar[str]
    revision: ClassVar[Literal["e_tag", "version"]]
    credentials: ClassVar[str]
    absent: ClassVar[tuple[str, ...]]
    insecure: ClassVar[str]
    address: ClassVar[str]

    @abstractmethod
    def endpoint(self, environ: Environment | None = None) -> str | None:
        """Return the object store's address; None for the cloud's own.

        Raises:
            UnsupportedLake: the address carries credentials.
        """

    @abstractmethod
    def store(self, authority: str, client: Any, retry: Any) -> Any:
        """Return obstore's connections to a bucket. Settings come from the environment.

        Args:
            authority: of the canonical URL.
            client, retry: options of obstore.
        """

    @abstractmethod
    def spark_path(self, path: str) -> str:
        """Return a canonical URL as Hadoop's client spells it."""

    @abstractmethod
    def spark_settings(self, environ: Environment | None = None) -> dict[str, str]:
        """Return Spark's settings for lakes in this cloud, without credentials.

        Raises:
            UnsupportedLake: as for `endpoint`.
        """

    def delta_options(self) -> dict[str, str]:
        """Return what deltalake needs to know beside the environment."""
        return {}

    def allows_http(self) -> bool:
        """Return True if the environment permits an endpoint without TLS."""
        return os.environ.get(self.insecure, "").lower() in TRUE
