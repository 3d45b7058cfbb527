package io.lakestream.azure;

import java.io.IOException;
import java.util.Date;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.azurebfs.extensions.CustomTokenProviderAdaptee;
import org.apache.hadoop.fs.azurebfs.oauth2.AzureADAuthenticator;
import org.apache.hadoop.fs.azurebfs.oauth2.AzureADToken;

/** For fs.azure.account.oauth.provider.type: tokens of a service principal whose secret is in the environment. */
public final class EnvironmentToken implements CustomTokenProviderAdaptee {
  private Date expiry = new Date(0);

  @Override
  public void initialize(Configuration configuration, String account) {}

  @Override
  public String getAccessToken() throws IOException {
    String authority = Environment.get(Environment.AUTHORITIES, "https://login.microsoftonline.com");
    AzureADToken token =
        AzureADAuthenticator.getTokenUsingClientCreds(
            authority + "/" + Environment.get(Environment.TENANTS) + "/oauth2/token",
            Environment.get(Environment.CLIENTS),
            Environment.get(Environment.SECRETS));
    expiry = token.getExpiry();
    return token.getAccessToken();
  }

  @Override
  public Date getExpiryTime() {
    return expiry;
  }
}
