package io.lakestream.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import java.util.Objects;
import javax.crypto.Cipher;
import javax.crypto.Mac;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.crypto.DecryptionPropertiesFactory;
import org.apache.parquet.crypto.EncryptionPropertiesFactory;
import org.apache.parquet.crypto.FileDecryptionProperties;
import org.apache.parquet.crypto.FileEncryptionProperties;
import org.apache.parquet.crypto.ParquetCryptoRuntimeException;
import org.apache.parquet.hadoop.api.WriteSupport.WriteContext;

/**
 * The keys of encrypted tables, for Spark: the twin of lakestream/lake/table/encryption.py.
 *
 * <p>A table with a file {@code _sealing.key} is encrypted. That file has the table's key, wrapped by one of the master
 * keys in the environment variable {@code LAKESTREAM_KEYS}. Without the variable every file is read as a plain one, and
 * nothing is written to an encrypted table.
 */
public final class TableKeys implements DecryptionPropertiesFactory, EncryptionPropertiesFactory {
  private static final String VARIABLE = "LAKESTREAM_KEYS";
  private static final String KEY = "_sealing.key";
  private static final String LOG = "_delta_log";

  /** Directories above a data file, of which one is the table's. */
  private static final int DEPTH = 3;

  /** The same key is in the file twice, so many bytes apart. */
  private static final int COPY = 4096;

  private static final byte[] MAGIC = "LKSEALKY".getBytes(StandardCharsets.US_ASCII);
  private static final int MASTER_AT = 12;
  private static final int SALT_AT = 36;
  private static final int NONCE_AT = 52;
  private static final int HEAD = 64;
  private static final int WRAPPED = 48;
  private static final int TAG_BITS = 128;

  @Override
  public FileDecryptionProperties getFileDecryptionProperties(Configuration settings, Path file) {
    byte[] key = System.getenv(VARIABLE) == null ? null : key(settings, file);
    return key == null
        ? null
        : FileDecryptionProperties.builder().withFooterKey(key).withPlaintextFilesAllowed().build();
  }

  @Override
  public FileEncryptionProperties getFileEncryptionProperties(
      Configuration settings, Path file, WriteContext context) {
    byte[] key = key(settings, file);
    return key == null ? null : FileEncryptionProperties.builder(key).build();
  }

  /** Returns the key of the table that a file is in; null for a plain one, and for files of a table's log. */
  private static byte[] key(Configuration settings, Path file) {
    String masters = Objects.requireNonNullElse(System.getenv(VARIABLE), "");
    Path directory = file == null ? null : file.getParent();
    for (int depth = 0; depth < DEPTH && directory != null; depth++, directory = directory.getParent()) {
      if (directory.getName().equals(LOG)) {
        return null;
      }
      Path place = new Path(directory, KEY);
      try (FSDataInputStream content = place.getFileSystem(settings).open(place)) {
        return unwrapped(place, content.readAllBytes(), masters);
      } catch (FileNotFoundException none) {
        continue;
      } catch (IOException | GeneralSecurityException error) {
        throw new ParquetCryptoRuntimeException(place + ": " + error.getMessage(), error);
      }
    }
    return null;
  }

  private static byte[] unwrapped(Path place, byte[] content, String masters) throws GeneralSecurityException {
    for (int at = 0; at + HEAD + WRAPPED <= content.length; at += COPY) {
      byte[] copy = Arrays.copyOfRange(content, at, at + HEAD + WRAPPED);
      if (!Arrays.equals(Arrays.copyOf(copy, MAGIC.length), MAGIC)) {
        continue;
      }
      for (String master : masters.split("\n")) {
        byte[] text = master.getBytes(StandardCharsets.UTF_8);
        byte[] id = Arrays.copyOf(hmac(text, "lakestream master key id"), 8);
        if (text.length == 0 || !Arrays.equals(id, Arrays.copyOfRange(copy, MASTER_AT, MASTER_AT + 8))) {
          continue;
        }
        byte[] wrapping = hmac(hmac(Arrays.copyOfRange(copy, SALT_AT, NONCE_AT), text), "lakestream wrap\u0001");
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        cipher.init(
            Cipher.DECRYPT_MODE,
            new SecretKeySpec(wrapping, "AES"),
            new GCMParameterSpec(TAG_BITS, Arrays.copyOfRange(copy, NONCE_AT, HEAD)));
        cipher.updateAAD(copy, 0, HEAD);
        return hmac(cipher.doFinal(copy, HEAD, WRAPPED), "lakestream parquet\u0001");
      }
    }
    throw new ParquetCryptoRuntimeException(
        place + " was sealed with another key than those in " + VARIABLE + ", or is damaged");
  }

  private static byte[] hmac(byte[] key, String message) throws GeneralSecurityException {
    return hmac(key, message.getBytes(StandardCharsets.UTF_8));
  }

  private static byte[] hmac(byte[] key, byte[] message) throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(key, "HmacSHA256"));
    return mac.doFinal(message);
  }
}
