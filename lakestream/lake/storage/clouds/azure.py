"""Azure Blob Storage and Azure Data Lake Storage Gen2.

Belongs here: settings under the names of object_store (AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID, …), so that every
client uses the same account with the same credentials: an account key, a service principal, a workload identity, a
shared access signature, or the machine's managed identity, the first of them that the environment has. Hadoop's client
reads secrets from the environment of its own process, by classes of lakestream's JAR, and never from its configuration.

Source: Blob service REST API, "Specifying conditional headers" (If-None-Match, If-Match).
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from lakestream.lake.errors import UnsupportedLake
from lakestream.lake.storage.clouds import urls
from lakestream.lake.storage.clouds.cloud import Cloud, Environment

SETTINGS = {
    # Accounts without a hierarchical namespace are used by the blob protocol, others by that of the data lake.
    "spark.hadoop.fs.azure.fns.account.service.type": "BLOB",
    # A driver that waits for minutes has lost its lease by then, and retries by itself.
    "spark.hadoop.fs.azure.io.retry.max.retries": "6",
    "spark.hadoop.fs.azure.io.retry.max.backoff.interval": "5000",
}
"""Settings of every Spark over Azure; spark_conf/cluster has the same."""
KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
SIGNATURES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
CLIENTS = ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
SECRETS = ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
TENANTS = ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID")
LOGIN = "https://login.microsoftonline.com"
_OWN = "io.lakestream.azure"
_HADOOP = "org.apache.hadoop.fs.azurebfs.oauth2"


class Azure(Cloud):
    """Azure."""

    name = "azure"
    scheme = urls.AZURE
    revision = "e_tag"
    credentials = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_CLIENT_ID or the managed identity"
    absent = ("169.254.169.254", "metadata/identity")
    insecure = "AZURE_ALLOW_HTTP"
    address = "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY or AZURE_CLIENT_ID"

    def endpoint(self, environ: Environment | None = None) -> str | None:
        environ = os.environ if environ is None else environ
        found = environ.get("AZURE_STORAGE_ENDPOINT") or environ.get("AZURE_ENDPOINT")
        if not found:
            return None
        if "@" in found or "?" in found:
            raise UnsupportedLake(
                "AZURE_STORAGE_ENDPOINT", "credentials belong in AZURE_STORAGE_ACCOUNT_KEY and the like, not here"
            )
        return found.rstrip("/")

    def store(self, authority: str, client: Any, retry: Any) -> Any:
        from obstore.store import AzureStore

        container, account, domain = urls.account_of(authority)
        where = self.endpoint()
        if where is None and domain != urls.AZURE_DOMAIN:
            where = f"https://{account}.blob.{domain}"
        config: Any = {"account_name": account}
        if where is not None:
            config["endpoint"] = where
        return AzureStore(container, config=config, client_options=client, retry_config=retry)

    def spark_path(self, path: str) -> str:
        where = self.endpoint()
        plain = where is not None and where.startswith("http:")
        return "abfs" + path.removeprefix("abfss") if plain else path

    def spark_settings(self, environ: Environment | None = None) -> dict[str, str]:
        environ = os.environ if environ is None else environ
        found = SETTINGS | _authentication(environ)
        where = self.endpoint(environ)
        if where is not None and (parts := urlsplit(where)).port is not None:
            # An emulator: the account is part of the path, which Hadoop's client adds by itself.
            found["spark.hadoop.fs.azure.abfs.endpoint"] = parts.netloc
            found["spark.hadoop.fs.azure.always.use.https"] = str(parts.scheme == "https").lower()
            found["spark.hadoop.fs.azure.account.hns.enabled"] = "false"
            # The default one cannot do without TLS.
            found["spark.hadoop.fs.azure.networking.library"] = "JDK_HTTP_URL_CONNECTION"
        return found

    def delta_options(self) -> dict[str, str]:
        where = self.endpoint()
        found = {} if where is None else {"azure_storage_endpoint": where}
        return found | ({"allow_http": "true"} if self.allows_http() else {})


def _authentication(environ: Environment) -> dict[str, str]:
    """Return the settings of Hadoop's client for the credentials of the environment, in object_store's order."""
    prefix = "spark.hadoop.fs.azure.account"
    client, tenant = _first(environ, CLIENTS), _first(environ, TENANTS)
    if _first(environ, KEYS):
        return {f"{prefix}.auth.type": "SharedKey", f"{prefix}.keyprovider": f"{_OWN}.EnvironmentKey"}
    if client and tenant and _first(environ, SECRETS):
        return {f"{prefix}.auth.type": "Custom", f"{prefix}.oauth.provider.type": f"{_OWN}.EnvironmentToken"}
    if client and tenant and (file := environ.get("AZURE_FEDERATED_TOKEN_FILE")):
        return {
            f"{prefix}.auth.type": "OAuth",
            f"{prefix}.oauth.provider.type": f"{_HADOOP}.WorkloadIdentityTokenProvider",
            f"{prefix}.oauth2.msi.tenant": tenant,
            f"{prefix}.oauth2.client.id": client,
            f"{prefix}.oauth2.token.file": file,
        }
    if _first(environ, SIGNATURES):
        return {
            f"{prefix}.auth.type": "SAS",
            "spark.hadoop.fs.azure.sas.token.provider.type": f"{_OWN}.EnvironmentSignature",
        }
    found = {f"{prefix}.auth.type": "OAuth", f"{prefix}.oauth.provider.type": f"{_HADOOP}.MsiTokenProvider"}
    return found | ({f"{prefix}.oauth2.client.id": client} if client else {})


def _first(environ: Environment, names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
