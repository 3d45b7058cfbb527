import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalogProperties.SnapshotMode;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.ImmutableRegisterTableRequest;
import org.apache.iceberg.rest.requests.RegisterTableRequest;

/**
 * An Iceberg REST catalog for tests: the handlers of Iceberg's library behind the JDK's HTTP server.
 *
 * <p>Arguments: the token that requests must have; `overwrite` or `once`, if a registration can be overwritten. Prints
 * its port.
 */
public final class RestCatalogServer {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final InMemoryCatalog CATALOG = new InMemoryCatalog();

  public static void main(String[] arguments) throws Exception {
    String token = arguments[0];
    boolean overwrites = arguments[1].equals("overwrite");
    JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    JSON.setPropertyNamingStrategy(PropertyNamingStrategies.KebabCaseStrategy.INSTANCE);
    JSON.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY); // as Iceberg's own mapper
    RESTSerializers.registerAll(JSON);
    CATALOG.initialize("tests", Map.of());
    Field files = InMemoryCatalog.class.getDeclaredField("io"); // its own are in memory, too
    files.setAccessible(true);
    files.set(CATALOG, new HadoopFileIO(new Configuration()));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext(
        "/",
        exchange -> {
          try {
            if (!("Bearer " + token).equals(exchange.getRequestHeaders().getFirst("Authorization"))) {
              fail(exchange, 401, "NotAuthorizedException", "the token is wrong");
              return;
            }
            Object answer = answer(exchange, overwrites);
            send(exchange, answer == null ? 204 : 200, answer == null ? "" : JSON.writeValueAsString(answer));
          } catch (NoSuchTableException | NoSuchNamespaceException error) {
            fail(exchange, 404, error.getClass().getSimpleName(), error.getMessage());
          } catch (AlreadyExistsException error) {
            fail(exchange, 409, "AlreadyExistsException", error.getMessage());
          } catch (UnsupportedOperationException error) {
            fail(exchange, 406, "UnsupportedOperationException", error.getMessage());
          } catch (Exception error) {
            error.printStackTrace();
            fail(exchange, 500, error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
          } finally {
            exchange.close();
          }
        });
    server.start();
    System.out.println(server.getAddress().getPort());
  }

  private static Object answer(HttpExchange exchange, boolean overwrites) throws IOException {
    String[] parts = exchange.getRequestURI().getRawPath().split("/"); // "", base, v1, prefix, namespaces, …
    for (int at = 0; at < parts.length; at++) {
      parts[at] = URLDecoder.decode(parts[at], StandardCharsets.UTF_8);
    }
    String method = exchange.getRequestMethod();
    byte[] body = exchange.getRequestBody().readAllBytes();
    if (parts[3].equals("config")) {
      return Map.of("defaults", Map.of(), "overrides", Map.of("prefix", "main"));
    }
    if (parts.length == 5) {
      return method.equals("GET")
          ? CatalogHandlers.listNamespaces(CATALOG, Namespace.empty())
          : CatalogHandlers.createNamespace(CATALOG, JSON.readValue(body, CreateNamespaceRequest.class));
    }
    Namespace namespace = Namespace.of(parts[5]);
    if (parts.length == 6) {
      return CatalogHandlers.loadNamespace(CATALOG, namespace);
    }
    if (parts[6].equals("register")) {
      RegisterTableRequest request = JSON.readValue(body, RegisterTableRequest.class);
      if (request.overwrite() && overwrites) { // this catalog does not
        CatalogHandlers.dropTable(CATALOG, TableIdentifier.of(namespace, request.name()));
        request = ImmutableRegisterTableRequest.builder().from(request).overwrite(false).build();
      }
      return CatalogHandlers.registerTable(CATALOG, namespace, request);
    }
    if (parts.length == 7) {
      Map<String, String> query = new HashMap<>();
      String raw = exchange.getRequestURI().getRawQuery();
      for (String each : raw == null ? new String[0] : raw.split("&")) {
        query.put(each.split("=")[0], URLDecoder.decode(each.split("=", 2)[1], StandardCharsets.UTF_8));
      }
      return CatalogHandlers.listTables(CATALOG, namespace, query.getOrDefault("pageToken", ""), "2");
    }
    TableIdentifier table = TableIdentifier.of(namespace, parts[7]);
    if (method.equals("DELETE")) {
      CatalogHandlers.dropTable(CATALOG, table);
      return null;
    }
    return CatalogHandlers.loadTable(CATALOG, table, SnapshotMode.ALL);
  }

  private static void fail(HttpExchange exchange, int status, String kind, String message) throws IOException {
    send(exchange, status, JSON.writeValueAsString(Map.of("error", Map.of("type", kind, "message", message, "code", status))));
  }

  private static void send(HttpExchange exchange, int status, String text) throws IOException {
    byte[] content = text.getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(status, content.length == 0 ? -1 : content.length);
    if (content.length > 0) {
      exchange.getResponseBody().write(content);
    }
  }
}
