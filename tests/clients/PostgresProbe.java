import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import org.postgresql.PGConnection;

/** Asks what programs with pgjdbc ask, and prints a line for each answer. The argument is the connection's URL. */
public class PostgresProbe {
  static void show(String name, ResultSet rows, int column) throws SQLException {
    StringBuilder line = new StringBuilder(name).append(":");
    while (rows.next()) {
      line.append(' ').append(rows.getString(column));
    }
    System.out.println(line);
  }

  static void metadata(DatabaseMetaData data) throws SQLException {
    System.out.println("version: " + data.getDatabaseProductVersion());
    show("schemas", data.getSchemas(), 1);
    show("catalogs", data.getCatalogs(), 1);
    show("tables", data.getTables(null, "public", "%", new String[] {"TABLE"}), 3);
    show("columns", data.getColumns(null, "public", "ORDERS", "s%"), 4);
    show("types", data.getColumns(null, "public", "ORDERS", "%"), 6);
    show("privileges", data.getTablePrivileges(null, "public", "ORDERS"), 6);
    show("keys", data.getPrimaryKeys(null, "public", "ORDERS"), 4);
    show("imported", data.getImportedKeys(null, "public", "ORDERS"), 4);
    show("indexes", data.getIndexInfo(null, "public", "ORDERS", false, false), 6);
    show("functions", data.getFunctions(null, "public", "%"), 3);
    show("udts", data.getUDTs(null, null, "%", null), 3);
    System.out.println("keywords: " + (data.getSQLKeywords().length() > 100) + " " + data.getTypeInfo().next());
  }

  static void values(Connection connection) throws SQLException {
    String query =
        "SELECT seq, time, data, json, 1.5::DECIMAL(5,2), [1,2], true, 2.5::DOUBLE, DATE '2020-01-02', NULL"
            + " FROM \"public\".\"ORDERS\" WHERE seq > ? AND subject = ? AND time < ?";
    for (int round = 0; round < 7; round++) { // pgjdbc prepares after five, and then reads binary
      try (PreparedStatement asked = connection.prepareStatement(query)) {
        asked.setInt(1, 1);
        asked.setString(2, "orders.1");
        asked.setTimestamp(3, new Timestamp(System.currentTimeMillis() + 1000));
        ResultSet row = asked.executeQuery();
        if (!row.next()) {
          throw new SQLException("no row");
        }
        Object[] list = (Object[]) row.getArray(6).getArray();
        boolean recent = System.currentTimeMillis() - row.getTimestamp(2).getTime() < 3_600_000;
        System.out.println("values: " + row.getLong(1) + " " + recent + " " + new String(row.getBytes(3)) + " "
            + row.getString(4) + " " + row.getBigDecimal(5) + " " + list[1] + " " + row.getBoolean(7) + " "
            + row.getDouble(8) + " " + row.getDate(9) + " " + row.getObject(10));
      }
    }
    try (PreparedStatement asked = connection.prepareStatement("SELECT ?, seq FROM ORDERS WHERE subject LIKE ? LIMIT ?")) {
      asked.setString(1, "x");
      asked.setString(2, "orders.%");
      asked.setInt(3, 2);
      System.out.println("described: " + asked.getMetaData().getColumnTypeName(2) + " "
          + asked.getParameterMetaData().getParameterTypeName(3));
      show("parameters", asked.executeQuery(), 1);
    }
  }

  static void cursor(Connection connection) throws SQLException {
    connection.setAutoCommit(false);
    try (Statement asked = connection.createStatement()) {
      asked.setFetchSize(1000);
      ResultSet rows = asked.executeQuery("SELECT range FROM range(25000)");
      long sum = 0;
      while (rows.next()) {
        sum += rows.getLong(1);
      }
      System.out.println("sum: " + sum);
    }
    connection.commit();
    connection.setAutoCommit(true);
  }

  static void timeout(Connection connection) {
    try (Statement asked = connection.createStatement()) {
      asked.setQueryTimeout(1);
      asked.executeQuery("SELECT count(*) FROM range(1000000) a, range(1000000) b");
    } catch (SQLException error) {
      System.out.println("timeout: " + error.getSQLState());
    }
  }

  public static void main(String[] arguments) throws Exception {
    try (Connection connection = DriverManager.getConnection(arguments[0])) {
      System.out.println("valid: " + connection.isValid(5) + " " + connection.getSchema());
      metadata(connection.getMetaData());
      values(connection);
      cursor(connection);
      timeout(connection);
      StringWriter written = new StringWriter();
      long copied = ((PGConnection) connection).getCopyAPI().copyOut("COPY (SELECT 1, 'a') TO STDOUT", written);
      System.out.println("copied: " + copied + " " + written.toString().trim());
      connection.setReadOnly(true);
      connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
      try (Statement asked = connection.createStatement()) {
        show("end", asked.executeQuery("SELECT 1"), 1);
      }
    }
  }
}
