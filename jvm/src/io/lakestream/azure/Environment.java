package io.lakestream.azure;

import java.util.List;

/** Secrets for Azure in the variables of this process, under the names that object_store knows. */
final class Environment {
  private Environment() {}

  static final List<String> KEYS =
      List.of("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY");
  static final List<String> SIGNATURES = List.of("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY");
  static final List<String> CLIENTS = List.of("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID");
  static final List<String> SECRETS = List.of("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET");
  static final List<String> TENANTS = List.of("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID");
  static final List<String> AUTHORITIES = List.of("AZURE_STORAGE_AUTHORITY_HOST", "AZURE_AUTHORITY_HOST");

  /** Returns the value of the first variable that is set. */
  static String get(List<String> names) {
    for (String name : names) {
      String found = System.getenv(name);
      if (found != null && !found.isBlank()) {
        return found;
      }
    }
    throw new IllegalStateException("set " + names.get(0) + " in the environment of every Spark process");
  }

  /** As `get`, with a value for when no variable is set. */
  static String get(List<String> names, String otherwise) {
    for (String name : names) {
      String found = System.getenv(name);
      if (found != null && !found.isBlank()) {
        return found;
      }
    }
    return otherwise;
  }
}
