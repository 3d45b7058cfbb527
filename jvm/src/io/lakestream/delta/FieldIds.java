package io.lakestream.delta;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IOUtils;
import org.apache.parquet.format.ConvertedType;
import org.apache.parquet.format.FileMetaData;
import org.apache.parquet.format.SchemaElement;
import org.apache.parquet.format.Util;
import org.apache.spark.sql.SparkSession;

/**
 * Ids of the columns in a Parquet file that Spark has written, for readers of Iceberg that take no columns by name.
 *
 * <p>Spark's writer takes an id from a column's metadata, but has none for the fields inside of maps and lists. So the
 * file is copied with another footer; pages and their indexes keep their places.
 */
public final class FieldIds {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final byte[] MAGIC = "PAR1".getBytes(StandardCharsets.US_ASCII);
  private static final String BETWEEN = "\0";

  private FieldIds() {}

  /**
   * Copies a file, with ids.
   *
   * @param ids JSON: the id of each field by the names from the column inwards, joined by a NUL
   * @return the length of the copy
   */
  public static long copy(SparkSession spark, String source, String target, String ids) throws IOException {
    Configuration configuration = spark.sessionState().newHadoopConf();
    Path from = new Path(source);
    FileSystem files = from.getFileSystem(configuration);
    long length = files.getFileStatus(from).getLen();
    try (FSDataInputStream input = files.open(from)) {
      byte[] end = new byte[Integer.BYTES + MAGIC.length];
      input.readFully(length - end.length, end);
      byte[] footer = new byte[ByteBuffer.wrap(end).order(ByteOrder.LITTLE_ENDIAN).getInt()];
      long pages = length - end.length - footer.length;
      input.readFully(pages, footer);
      byte[] changed = identified(footer, JSON.readTree(ids));
      try (FSDataOutputStream output = files.create(new Path(target), false)) {
        IOUtils.copyBytes(input, output, pages, false);
        output.write(changed);
        output.write(ByteBuffer.allocate(Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN).putInt(changed.length).array());
        output.write(MAGIC);
        return output.getPos();
      }
    }
  }

  private static byte[] identified(byte[] footer, JsonNode ids) throws IOException {
    FileMetaData metadata = Util.readFileMetaData(new ByteArrayInputStream(footer));
    List<SchemaElement> elements = metadata.getSchema();
    int at = 1; // behind the root
    for (int child = 0; child < elements.get(0).getNum_children(); child++) {
      at = identify(elements, at, "", false, ids);
    }
    ByteArrayOutputStream changed = new ByteArrayOutputStream();
    Util.writeFileMetaData(metadata, changed);
    return changed.toByteArray();
  }

  /**
   * Gives a field and those inside of it ids; returns the place of the next one.
   *
   * @param inside the group around it is a map or a list, so that it is a group of entries without a name in Iceberg
   */
  private static int identify(List<SchemaElement> elements, int at, String above, boolean inside, JsonNode ids) {
    SchemaElement element = elements.get(at++);
    String path = inside ? above : above.isEmpty() ? element.getName() : above + BETWEEN + element.getName();
    if (!inside && ids.has(path)) {
      element.setField_id(ids.get(path).asInt());
    }
    ConvertedType type = element.getConverted_type();
    boolean entries = type == ConvertedType.MAP || type == ConvertedType.LIST;
    for (int child = 0; child < element.getNum_children(); child++) {
      at = identify(elements, at, path, entries, ids);
    }
    return at;
  }
}
