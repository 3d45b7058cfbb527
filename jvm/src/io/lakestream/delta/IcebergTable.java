package io.lakestream.delta;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.PartitionData;
import org.apache.iceberg.PartitionField;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.UpdateProperties;
import org.apache.iceberg.data.parquet.GenericParquetWriter;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.PositionDelete;
import org.apache.iceberg.deletes.PositionDeleteWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.mapping.MappingUtil;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.deletionvectors.DeletionVectorStoredBitmap;
import org.apache.spark.sql.delta.storage.dv.HadoopFileSystemDVStore;
import scala.Option;

/**
 * The Iceberg table over the files of a Delta table, in the directory `metadata` of the table.
 *
 * <p>Iceberg's own library writes all of it: metadata, manifests, deletion vectors. It is derived state. Its only writer
 * is the exporter beside the compactor, which tells it the changes since the Delta version that it holds. So there is
 * no conflict to resolve, and what cannot be read is deleted and made again.
 *
 * <p>Versions have names by number, beside a hint (HadoopTableOperations): readers need no catalog. A version gets its
 * name once all that it refers to is on disk. Nothing outside of `metadata` is ever deleted or written.
 *
 * <p>Columns keep the ids that the caller gives them. Iceberg's API would assign ids by itself, which a table that is
 * made again could not repeat, so schemas and partitions are set in the metadata directly.
 */
public final class IcebergTable {
  private static final ObjectMapper JSON = new ObjectMapper();

  private static final String[] SETTINGS = {
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX, "20",
    // Readers of Delta see the files by their own log; nobody else may delete them.
    TableProperties.GC_ENABLED, "false",
    // Each commit opens all manifests that it may concern, each scan all of them; Iceberg's own default is 100.
    TableProperties.MANIFEST_MIN_MERGE_COUNT, "20",
    // A merge writes a manifest of this size at most again; with Iceberg's 8 MiB that would be those of 100,000 files.
    TableProperties.MANIFEST_TARGET_SIZE_BYTES, "524288",
  };

  /**
   * Runs Iceberg's tasks in the thread of the commit. Those of its pool are looked at every 10 ms, six times in a commit
   * and longer than they take: a commit has a few small files.
   */
  private static final ExecutorService HERE = MoreExecutors.newDirectExecutorService();

  private final String location;
  private final Path directory;
  private final IcebergFiles io;
  private IcebergVersions versions;

  private IcebergTable(IcebergFiles files, String location) {
    this.location = location;
    directory = new Path(location, IcebergVersions.DIRECTORY);
    io = files;
    versions = new IcebergVersions(location, files);
  }

  /** Opens the table over the Delta table at a path or URL, whether it exists or not. */
  public static IcebergTable open(IcebergFiles files, String location) {
    return new IcebergTable(files, location);
  }

  /**
   * Returns what the newest version says of itself, as JSON; "" if there is none.
   *
   * <p>Members: uuid, format, location, partition (columns), properties, oldest (time of the oldest snapshot besides the
   * current one, ms since the epoch), metadata (the path of its file).
   */
  public String state() {
    TableMetadata found = versions.refresh();
    if (found == null) {
      return "";
    }
    ObjectNode state = JSON.createObjectNode();
    state.put("uuid", found.uuid());
    state.put("format", found.formatVersion());
    state.put("location", found.location());
    state.put("metadata", found.metadataFileLocation());
    Snapshot current = found.currentSnapshot();
    found.snapshots().stream()
        .filter(each -> each.snapshotId() != current.snapshotId())
        .mapToLong(Snapshot::timestampMillis)
        .min()
        .ifPresent(time -> state.put("oldest", time));
    found.spec().fields().forEach(field -> state.withArray("partition").add(field.name()));
    ObjectNode properties = state.putObject("properties");
    found.properties().forEach(properties::put);
    return state.toString();
  }

  /** Returns true if every manifest and every file of deletions of the current snapshot is there, in full length. */
  public boolean isWhole() throws IOException {
    TableMetadata found = versions.current();
    Map<String, Long> sizes = new HashMap<>();
    for (FileStatus file : listing()) {
      sizes.put(file.getPath().getName(), file.getLen());
    }
    Snapshot current = found.currentSnapshot();
    if (current == null) {
      return true;
    }
    if (!sizes.containsKey(name(current.manifestListLocation()))) {
      return false;
    }
    for (ManifestFile manifest : current.allManifests(io)) {
      if (!Long.valueOf(manifest.length()).equals(sizes.get(name(manifest.path())))) {
        return false;
      }
    }
    for (DeleteFile file : deletions(found)) {
      if (!Long.valueOf(file.fileSizeInBytes()).equals(sizes.get(name(file.location())))) {
        return false;
      }
    }
    return true;
  }

  /** Makes the hint name the newest version, if it does not. */
  public void mendHint() throws IOException {
    versions.mendHint();
  }

  /** Returns the data files of the current snapshot: lines of JSON with location, partition, and if rows are deleted. */
  public String files() throws IOException {
    TableMetadata found = versions.current();
    StringBuilder lines = new StringBuilder();
    if (found.currentSnapshot() == null) {
      return "";
    }
    Set<String> deleted = new HashSet<>();
    for (DeleteFile file : deletions(found)) {
      deleted.add(file.referencedDataFile());
    }
    for (ManifestFile manifest : found.currentSnapshot().dataManifests(io)) {
      try (ManifestReader<DataFile> reader = ManifestFiles.read(manifest, io, found.specsById())) {
        for (DataFile file : reader) {
          ObjectNode line = JSON.createObjectNode();
          line.put("location", file.location());
          line.put("deleted", deleted.contains(file.location()));
          ObjectNode partition = line.putObject("partition");
          PartitionSpec spec = found.spec();
          for (int at = 0; at < spec.fields().size(); at++) {
            Object value = file.partition().get(at, Object.class);
            partition.put(spec.fields().get(at).name(), value == null ? null : value.toString());
          }
          lines.append(line).append('\n');
        }
      }
    }
    return lines.toString();
  }

  /**
   * Commits a version that differs from the current one by some changes, in one step.
   *
   * @param description JSON with uuid, format, schema and spec (in Iceberg's JSON), properties, summary (of the
   *     snapshot), retain_ms (the age at which snapshots expire), snapshots (their greatest number), tag (a name for the
   *     present snapshot; null: none)
   * @param changes lines of JSON. An `add` has location, partition, size, rows, stats (Delta's) and vector (Delta's, or
   *     null); a `remove` has location, partition and deleted (the file had deleted rows); a `vector` has all of these
   * @return the location of the new metadata file
   */
  public String commit(String description, String changes) throws IOException {
    JsonNode wanted = JSON.readTree(description);
    TableMetadata base = versions.refresh();
    boolean isNew = base == null;
    TableMetadata described = described(base, wanted);
    Transaction transaction;
    if (isNew) {
      transaction = Transactions.createTableTransaction(location, versions, described);
    } else {
      if (!described.changes().isEmpty()) {
        versions.commit(base, described);
        described = versions.current();
      }
      transaction = Transactions.newTransaction(location, versions);
    }
    if (!changes.isEmpty()) {
      change(transaction, described, wanted, changes);
    }
    UpdateProperties properties = transaction.updateProperties();
    wanted.get("properties").properties().forEach(each -> properties.set(each.getKey(), each.getValue().asText()));
    properties.commit();
    transaction.commitTransaction();
    return versions.current().metadataFileLocation();
  }

  /**
   * Deletes files of `metadata` that no snapshot needs: of expired snapshots, and of commits that were interrupted.
   *
   * @param before only files last modified before this time, ms since the epoch
   * @return their number
   */
  public int sweep(long before) throws IOException {
    TableMetadata found = versions.refresh();
    Set<String> needed = new HashSet<>();
    needed.add(name(found.metadataFileLocation()));
    found.previousFiles().forEach(each -> needed.add(name(each.file())));
    Set<String> seen = new HashSet<>();
    for (Snapshot snapshot : found.snapshots()) {
      needed.add(name(snapshot.manifestListLocation()));
      for (ManifestFile manifest : snapshot.allManifests(io)) {
        if (!seen.add(manifest.path())) {
          continue;
        }
        needed.add(name(manifest.path()));
        if (manifest.content() == org.apache.iceberg.ManifestContent.DELETES) {
          try (ManifestReader<DeleteFile> reader = ManifestFiles.readDeleteManifest(manifest, io, found.specsById())) {
            reader.forEach(file -> needed.add(name(file.location())));
          }
        }
      }
    }
    int deleted = 0;
    for (FileStatus file : listing()) {
      String name = file.getPath().getName();
      boolean ours = name.endsWith(".avro") || name.endsWith(".puffin") || name.endsWith(".parquet") || name.endsWith(".json");
      ours |= name.endsWith("-" + IcebergVersions.HINT) || name.endsWith("-version-hint.temp"); // of a writer that was killed
      if (ours && !needed.contains(name) && file.getModificationTime() < before && io.system().delete(file.getPath(), false)) {
        deleted++;
      }
    }
    return deleted;
  }

  /** Deletes the Iceberg table: the directory `metadata`. The data files stay. */
  public void remove() throws IOException {
    io.system().delete(directory, true);
    versions = new IcebergVersions(location, io); // it remembers the version
  }

  /** Returns the current metadata with the schema, partitioning and format that are wanted, or those of a new table. */
  private TableMetadata described(TableMetadata base, JsonNode wanted) throws IOException {
    Schema schema = SchemaParser.fromJson(wanted.get("schema"));
    Map<String, String> settings = new HashMap<>();
    for (int at = 0; at < SETTINGS.length; at += 2) {
      settings.put(SETTINGS[at], SETTINGS[at + 1]);
    }
    settings.put(TableProperties.WRITE_DATA_LOCATION, directory.toString()); // of deletions: data files are Delta's
    if (base == null || !base.schema().sameSchema(schema)) {
      settings.put(TableProperties.DEFAULT_NAME_MAPPING, NameMappingParser.toJson(MappingUtil.create(schema)));
    }
    int format = wanted.get("format").asInt();
    TableMetadata.Builder builder;
    if (base == null) {
      builder = TableMetadata.buildFromEmpty(format);
      builder.assignUUID(wanted.get("uuid").asText()).setLocation(location);
      builder.setCurrentSchema(schema, schema.highestFieldId());
    } else {
      builder = TableMetadata.buildFrom(base);
      if (!base.schema().sameSchema(schema)) {
        builder.setCurrentSchema(schema, Math.max(base.lastColumnId(), schema.highestFieldId()));
      }
    }
    if (base == null) {
      ObjectNode spec = JSON.createObjectNode().put("spec-id", 0);
      spec.set("fields", wanted.get("spec"));
      builder.setDefaultPartitionSpec(PartitionSpecParser.fromJson(schema, spec));
      builder.setDefaultSortOrder(SortOrder.unsorted());
    }
    if (base == null || !settings.entrySet().stream().allMatch(each -> each.getValue().equals(base.property(each.getKey(), null)))) {
      builder.setProperties(settings);
    }
    if (base != null) {
      expire(builder, base, wanted);
    }
    return builder.build();
  }

  private void change(Transaction transaction, TableMetadata described, JsonNode wanted, String changes)
      throws IOException {
    RowDelta delta = transaction.newRowDelta().scanManifestsWith(HERE).writeManifestsWith(HERE, 1);
    if (described.currentSnapshot() != null) { // else vectors that this replaces count as somebody else's
      delta.validateFromSnapshot(described.currentSnapshot().snapshotId());
    }
    PartitionSpec spec = described.spec();
    Deletions deletions = described.formatVersion() >= 3 ? new Vectors(transaction.table()) : new Positions();
    Set<String> undone = new HashSet<>();
    for (String line : (Iterable<String>) changes.lines()::iterator) {
      JsonNode change = JSON.readTree(line);
      String path = change.get("location").asText();
      StructLike partition = partition(spec, change.get("partition"));
      String kind = change.get("kind").asText();
      if (kind.equals("remove")) {
        delta.removeRows(
            DataFiles.builder(spec).withPath(path).withPartition(partition).withFormat(FileFormat.PARQUET)
                .withFileSizeInBytes(0).withRecordCount(0).build());
      } else if (kind.equals("add")) {
        delta.addRows(
            DataFiles.builder(spec).withPath(path).withPartition(partition).withFormat(FileFormat.PARQUET)
                .withFileSizeInBytes(change.get("size").asLong()).withMetrics(metrics(described.schema(), change)).build());
      }
      if (change.path("deleted").asBoolean()) {
        undone.add(path);
      }
      if (change.hasNonNull("vector")) {
        deletions.add(path, spec, partition, positions(change.get("vector")));
      }
    }
    if (!undone.isEmpty()) {
      for (DeleteFile file : deletions(described)) {
        if (undone.contains(file.referencedDataFile())) {
          delta.removeDeletes(file);
        }
      }
    }
    deletions.written().forEach(delta::addDeletes);
    wanted.get("summary").properties().forEach(each -> delta.set(each.getKey(), each.getValue().asText()));
    delta.commit();
  }

  /**
   * Names the current snapshot if that is wanted, and drops snapshots that are too old or too many. No file is deleted.
   *
   * <p>Iceberg's own expiry needs `gc.enabled`, which would let every program delete data files.
   */
  private static void expire(TableMetadata.Builder builder, TableMetadata base, JsonNode wanted) {
    Snapshot last = base.currentSnapshot();
    if (last == null) {
      return;
    }
    long oldest = System.currentTimeMillis() - wanted.get("retain_ms").asLong();
    Set<Long> kept = new HashSet<>(List.of(last.snapshotId()));
    if (wanted.hasNonNull("tag") && base.ref(wanted.get("tag").asText()) == null) {
      builder.setRef(wanted.get("tag").asText(), SnapshotRef.tagBuilder(last.snapshotId()).build());
    }
    for (SnapshotRef ref : base.refs().values()) {
      if (base.snapshot(ref.snapshotId()).timestampMillis() >= oldest) {
        kept.add(ref.snapshotId());
      }
    }
    List<Snapshot> loose = new ArrayList<>(base.snapshots());
    loose.removeIf(each -> kept.contains(each.snapshotId()));
    loose.sort(Comparator.comparingLong(Snapshot::sequenceNumber));
    int most = wanted.get("snapshots").asInt();
    int surplus = loose.size() < most + most / 10 + 1 ? 0 : loose.size() - most; // several at once: it is a version of its own
    List<Long> expired = new ArrayList<>();
    for (int at = 0; at < loose.size(); at++) {
      if (at < surplus || loose.get(at).timestampMillis() < oldest) {
        expired.add(loose.get(at).snapshotId());
      }
    }
    if (!expired.isEmpty()) {
      builder.removeSnapshots(expired);
    }
  }

  private List<DeleteFile> deletions(TableMetadata of) throws IOException {
    List<DeleteFile> found = new ArrayList<>();
    if (of.currentSnapshot() != null) {
      for (ManifestFile manifest : of.currentSnapshot().deleteManifests(io)) {
        try (ManifestReader<DeleteFile> reader = ManifestFiles.readDeleteManifest(manifest, io, of.specsById())) {
          reader.forEach(file -> found.add(file.copyWithoutStats()));
        }
      }
    }
    return found;
  }

  /** Returns the rows that a deletion vector of Delta deletes. */
  private long[] positions(JsonNode vector) {
    DeletionVectorDescriptor descriptor =
        DeletionVectorDescriptor.apply(
            vector.get("storageType").asText(),
            vector.get("pathOrInlineDv").asText(),
            Option.apply(vector.hasNonNull("offset") ? (Object) vector.get("offset").asInt() : null),
            vector.get("sizeInBytes").asInt(),
            vector.get("cardinality").asLong(),
            Option.empty());
    return DeletionVectorStoredBitmap.apply(descriptor, Option.apply(new Path(location)))
        .load(new HadoopFileSystemDVStore(io.configuration()))
        .values();
  }

  private FileStatus[] listing() throws IOException {
    try {
      return io.system().listStatus(directory);
    } catch (FileNotFoundException none) {
      return new FileStatus[0];
    }
  }

  private static String name(String path) {
    return path.substring(path.lastIndexOf('/') + 1);
  }

  private static StructLike partition(PartitionSpec spec, JsonNode values) {
    PartitionData found = new PartitionData(spec.partitionType());
    int at = 0;
    for (PartitionField field : spec.fields()) {
      JsonNode value = values.get(field.name());
      Type type = spec.partitionType().fields().get(at).type();
      found.set(at++, value.isNull() ? null : Conversions.fromPartitionString(type, value.asText()));
    }
    return found;
  }

  private static Metrics metrics(Schema schema, JsonNode add) throws IOException {
    String text = add.path("stats").asText("");
    JsonNode stats = text.isEmpty() ? JSON.createObjectNode() : JSON.readTree(text);
    long rows = add.get("rows").asLong();
    Bounds bounds = new Bounds(rows);
    bounds.read(schema.asStruct(), stats.path("minValues"), stats.path("maxValues"), stats.path("nullCount"));
    return new Metrics(rows, null, bounds.values, bounds.nulls, null, bounds.lower, bounds.upper);
  }

  /** Statistics of a file by column id, from those of Delta. */
  private static final class Bounds {
    private final long rows;
    private final Map<Integer, Long> values = new HashMap<>();
    private final Map<Integer, Long> nulls = new HashMap<>();
    private final Map<Integer, ByteBuffer> lower = new HashMap<>();
    private final Map<Integer, ByteBuffer> upper = new HashMap<>();

    Bounds(long rows) {
      this.rows = rows;
    }

    void read(Types.StructType struct, JsonNode least, JsonNode most, JsonNode nullCount) {
      for (Types.NestedField field : struct.fields()) {
        JsonNode low = least.path(field.name());
        JsonNode high = most.path(field.name());
        JsonNode none = nullCount.path(field.name());
        if (field.type().isStructType()) {
          read(field.type().asStructType(), low, high, none);
        } else if (field.type().isPrimitiveType()) {
          if (none.isNumber()) {
            values.put(field.fieldId(), rows);
            nulls.put(field.fieldId(), none.asLong());
          }
          put(lower, field, low, false);
          put(upper, field, high, true);
        }
      }
    }

    private static void put(Map<Integer, ByteBuffer> bounds, Types.NestedField field, JsonNode value, boolean up) {
      if (value.isMissingNode() || value.isNull()) {
        return;
      }
      Object found =
          switch (field.type().typeId()) {
            case INTEGER -> value.asInt();
            case LONG -> value.asLong();
            case FLOAT -> (float) value.asDouble();
            case DOUBLE -> value.asDouble();
            case STRING -> value.asText();
            case DATE -> (int) LocalDate.parse(value.asText()).toEpochDay();
            // Delta cuts instants to ms.
            case TIMESTAMP -> micros(value.asText()) + (up ? 1000 : 0);
            case DECIMAL -> new BigDecimal(value.asText()).setScale(((Types.DecimalType) field.type()).scale());
            default -> null;
          };
      if (found != null) {
        bounds.put(field.fieldId(), Conversions.toByteBuffer(field.type(), found));
      }
    }

    private static long micros(String text) {
      String plain = text.replace(' ', 'T');
      boolean zoned = plain.endsWith("Z") || plain.lastIndexOf('+') > 10 || plain.lastIndexOf('-') > 10;
      Instant instant =
          zoned ? OffsetDateTime.parse(plain).toInstant() : LocalDateTime.parse(plain).toInstant(ZoneOffset.UTC);
      return ChronoUnit.MICROS.between(Instant.EPOCH, instant);
    }
  }

  /** Writes the deleted rows of a commit in the form of a format version. */
  private interface Deletions {
    void add(String path, PartitionSpec spec, StructLike partition, long[] positions) throws IOException;

    List<DeleteFile> written() throws IOException;
  }

  /** Deletion vectors in one Puffin file (v3). */
  private final class Vectors implements Deletions {
    private final Table table;
    private BaseDVFileWriter writer;

    Vectors(Table table) {
      this.table = table;
    }

    @Override
    public void add(String path, PartitionSpec spec, StructLike partition, long[] positions) {
      if (writer == null) {
        OutputFileFactory files = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PUFFIN).build();
        writer = new BaseDVFileWriter(files, data -> null);
      }
      for (long position : positions) {
        writer.delete(path, position, spec, partition);
      }
    }

    @Override
    public List<DeleteFile> written() throws IOException {
      if (writer == null) {
        return List.of();
      }
      writer.close();
      return writer.result().deleteFiles();
    }
  }

  /** A file of positions for each data file (v2), so that it can be replaced by itself. */
  private final class Positions implements Deletions {
    private final List<DeleteFile> files = new ArrayList<>();

    @Override
    public void add(String path, PartitionSpec spec, StructLike partition, long[] positions) throws IOException {
      PositionDeleteWriter<org.apache.iceberg.data.Record> writer =
          Parquet.writeDeletes(io.newOutputFile(directory + "/" + UUID.randomUUID() + ".parquet"))
              .createWriterFunc(GenericParquetWriter::create)
              .withSpec(spec)
              .withPartition(partition)
              .buildPositionWriter();
      try (writer) {
        for (long position : positions) {
          writer.write(PositionDelete.<org.apache.iceberg.data.Record>create().set(path, position));
        }
      }
      DeleteFile file = writer.toDeleteFile();
      files.add(FileMetadata.deleteFileBuilder(spec).copy(file).withReferencedDataFile(path).build());
    }

    @Override
    public List<DeleteFile> written() {
      return files;
    }
  }
}
