package io.lakestream.azure;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.azurebfs.services.KeyProvider;

/** For fs.azure.account.keyprovider: the account's key from the environment, so that no configuration has it. */
public final class EnvironmentKey implements KeyProvider {
  @Override
  public String getStorageAccountKey(String account, Configuration configuration) {
    return Environment.get(Environment.KEYS);
  }
}
