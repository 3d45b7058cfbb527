import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.types.Types;

/**
 * Rows of Iceberg tables as Iceberg's own library reads them (IcebergGenerics), for tests.
 *
 * <p>Reads paths of metadata files, one a line. For each it prints the rows, a line of JSON each, and then `end`, or
 * `error` with the reason. Values that JSON lacks are objects with one member: `bytes` (in Base64), `map` (pairs) and
 * `text` (dates and times in ISO's form).
 */
public final class IcebergRows {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws IOException {
    HadoopFileIO files = new HadoopFileIO(new Configuration());
    PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String path = input.readLine(); path != null; path = input.readLine()) {
      BaseTable table = new BaseTable(new StaticTableOperations(path, files), path);
      try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
        for (Record row : rows) {
          output.println(line(row));
        }
        output.println("end");
      } catch (RuntimeException error) {
        output.println("error " + String.valueOf(error).replace('\n', ' '));
      }
      output.flush();
    }
  }

  private static String line(Record row) throws IOException {
    StringWriter text = new StringWriter();
    try (JsonGenerator json = JSON.createGenerator(text)) {
      write(json, row);
    }
    return text.toString();
  }

  private static void write(JsonGenerator json, Object value) throws IOException {
    if (value instanceof Record row) {
      json.writeStartObject();
      for (Types.NestedField field : row.struct().fields()) {
        json.writeFieldName(field.name());
        write(json, row.getField(field.name()));
      }
      json.writeEndObject();
    } else if (value instanceof Map<?, ?> map) {
      json.writeStartObject();
      json.writeArrayFieldStart("map");
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        json.writeStartArray();
        write(json, entry.getKey());
        write(json, entry.getValue());
        json.writeEndArray();
      }
      json.writeEndArray();
      json.writeEndObject();
    } else if (value instanceof List<?> list) {
      json.writeStartArray();
      for (Object each : list) {
        write(json, each);
      }
      json.writeEndArray();
    } else if (value instanceof ByteBuffer bytes) {
      byte[] content = new byte[bytes.remaining()];
      bytes.duplicate().get(content);
      json.writeStartObject();
      json.writeBinaryField("bytes", content);
      json.writeEndObject();
    } else if (value == null || value instanceof Number || value instanceof String || value instanceof Boolean) {
      json.writePOJO(value);
    } else {
      json.writeStartObject();
      json.writeStringField("text", value.toString());
      json.writeEndObject();
    }
  }
}
