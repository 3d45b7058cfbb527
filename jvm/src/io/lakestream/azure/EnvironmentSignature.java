package io.lakestream.azure;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.azurebfs.extensions.SASTokenProvider;

/** For fs.azure.sas.token.provider.type: a shared access signature from the environment. */
public final class EnvironmentSignature implements SASTokenProvider {
  @Override
  public void initialize(Configuration configuration, String account) {}

  @Override
  public String getSASToken(String account, String container, String path, String operation) {
    String found = Environment.get(Environment.SIGNATURES);
    return found.startsWith("?") ? found.substring(1) : found;
  }
}
