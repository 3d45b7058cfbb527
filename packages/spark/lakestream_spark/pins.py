"""Names, sizes and checksums of the JARs that are fetched for Spark.

Belongs here: for Delta, Iceberg and each cloud the Maven coordinates that are resolved, what is excluded from them, and
the pinned files; jars.py fetches them. A file that Spark brings itself (Netty, Apache HttpClient, Jackson, SLF4J) is no
part of a package, so that there is one version of it on the class path.
"""

from __future__ import annotations

import msgspec

SCALA = "2.13"
DELTA_VERSION = "4.4.0"
HADOOP = "3.5.0"
AWS_SDK = "2.35.4"
_AWS = "software.amazon.awssdk"


class Pin(msgspec.Struct, frozen=True):
    """Expected content of a JAR: its length in bytes and its SHA-256 in hex; with its Maven group and licence."""

    size: int
    sha256: str
    group: str = _AWS
    licence: str = "Apache-2.0"


class Package(msgspec.Struct, frozen=True):
    """JARs that are fetched together.

    `title`: for messages. `coordinates`: what Ivy resolves, and `excluded`: patterns of what it leaves out, each joined
    by commas. `option`: of `python -m lakestream_spark.jars`. `probes`: classes that tell whether a running
    Spark has the package.
    """

    title: str
    coordinates: str
    excluded: str
    files: dict[str, Pin]
    option: str = ""
    probes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the sum of the sizes in bytes."""
        return sum(pin.size for pin in self.files.values())


DELTA = Package(
    "Delta",
    f"io.delta:delta-spark_4.2_{SCALA}:{DELTA_VERSION}",
    # Spark brings these in versions of its own, or only Unity Catalog needs them.
    "io.unitycatalog:*,org.apache.*:*,com.*:*,*:delta-kernel*",
    {
        f"delta-spark_4.2_{SCALA}-{DELTA_VERSION}.jar": Pin(
            9515916, "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead", "io.delta"
        ),
        f"delta-storage-{DELTA_VERSION}.jar": Pin(
            113863, "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc", "io.delta"
        ),
    },
)

ICEBERG_VERSION = "1.12.0"
_ICEBERG = "org.apache.iceberg"

ICEBERG = Package(
    "Iceberg",
    ",".join(f"{_ICEBERG}:{name}:{ICEBERG_VERSION}" for name in ("iceberg-core", "iceberg-parquet")),
    # Spark brings Avro, Jackson, Parquet, RoaringBitmap and compression; only catalogs need HTTP.
    "org.apache.avro:*,org.apache.commons:*,org.apache.httpcomponents*:*,com.fasterxml*:*,"
    "com.google*:*,commons-*:*,io.airlift:*,javax.*:*,org.jspecify:*,org.locationtech*:*,org.roaringbitmap:*,"
    "org.slf4j:*,org.xerial*:*,com.github.luben:*,"
    + ",".join(f"org.apache.parquet:parquet-{first}*" for first in "cefhjv"),
    {
        f"iceberg-api-{ICEBERG_VERSION}.jar": Pin(
            723109, "d476a6989edfe3882a47ce0eaa3e53df4d589ef5e7bd0a16ff113ae570bca8b6", _ICEBERG
        ),
        f"iceberg-bundled-guava-{ICEBERG_VERSION}.jar": Pin(
            1768582, "8d27e319e3bc28f7f86e7fbd59f6758bfaa1f78d72d9f76aa93ad1f7cbd3ba34", _ICEBERG
        ),
        f"iceberg-common-{ICEBERG_VERSION}.jar": Pin(
            31953, "18a43330e3c5eb712a9bf88e8f70441971851400efb4646f0b6512ac40c5f357", _ICEBERG
        ),
        f"iceberg-core-{ICEBERG_VERSION}.jar": Pin(
            2667816, "d3bbb331b7a907e134958d21ecccd91a736049e00768e07579ff60855bf28352", _ICEBERG
        ),
        f"iceberg-parquet-{ICEBERG_VERSION}.jar": Pin(
            453047, "fba0355f0d54bd68e21170e0e5f05632845d42ba346945017d2156e66297b85f", _ICEBERG
        ),
        "parquet-avro-1.17.1.jar": Pin(
            2198363, "ecb51da201df8266970af66686f9cb9df58db6702e0128e211d1a8d5050f6021", "org.apache.parquet"
        ),
        "caffeine-3.2.4.jar": Pin(
            1029147,
            "9d9d2cfd681fd9272ded3d27c9930db12f89f732345975aa113ebc223bbf1224",
            "com.github.ben-manes.caffeine",
        ),
    },
    "--iceberg",
    ("org.apache.iceberg.hadoop.HadoopTableOperations",),
)

_SDK_MODULES = ("s3", "s3-transfer-manager", "apache-client", "netty-nio-client", "sts", "sso")
"""Modules of the AWS SDK that Hadoop's client needs: the service, its copies and uploads in parts, HTTP for blocking
and asynchronous requests; for credentials web identities, assumed roles (sts) and single sign-on (sso)."""

S3 = Package(
    "Hadoop's client for S3 and the AWS SDK",
    ",".join([f"org.apache.hadoop:hadoop-aws:{HADOOP}", *(f"{_AWS}:{name}:{AWS_SDK}" for name in _SDK_MODULES)]),
    # The bundle has all of the 400 services.
    "org.apache.hadoop:hadoop-c*,org.wildfly.openssl:*,software.amazon.awssdk:bundle,"
    "io.netty:*,org.apache.httpcomponents:*,commons-*:*,org.slf4j:*",
    {
        f"hadoop-aws-{HADOOP}.jar": Pin(
            938071, "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa", "org.apache.hadoop"
        ),
        "analyticsaccelerator-s3-1.3.1.jar": Pin(
            2473459,
            "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
            "software.amazon.s3.analyticsaccelerator",
        ),
        "eventstream-1.0.1.jar": Pin(
            30193, "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822", "software.amazon.eventstream"
        ),
        "reactive-streams-1.0.4.jar": Pin(
            11640, "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28", "org.reactivestreams", "MIT-0"
        ),
        f"annotations-{AWS_SDK}.jar": Pin(13758, "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8"),
        f"apache-client-{AWS_SDK}.jar": Pin(77013, "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740"),
        f"arns-{AWS_SDK}.jar": Pin(16323, "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380"),
        f"auth-{AWS_SDK}.jar": Pin(241952, "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994"),
        f"aws-core-{AWS_SDK}.jar": Pin(192161, "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623"),
        f"aws-json-protocol-{AWS_SDK}.jar": Pin(
            141895, "d15dccce10d41c997be458ed897e3837bc7d4243a4baa7debeb5d963d12c672b"
        ),
        f"aws-query-protocol-{AWS_SDK}.jar": Pin(
            69369, "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f"
        ),
        f"aws-xml-protocol-{AWS_SDK}.jar": Pin(
            102272, "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d"
        ),
        f"checksums-{AWS_SDK}.jar": Pin(69585, "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948"),
        f"checksums-spi-{AWS_SDK}.jar": Pin(8044, "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec"),
        f"crt-core-{AWS_SDK}.jar": Pin(17774, "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62"),
        f"endpoints-spi-{AWS_SDK}.jar": Pin(13168, "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00"),
        f"http-auth-{AWS_SDK}.jar": Pin(17475, "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491"),
        f"http-auth-aws-{AWS_SDK}.jar": Pin(171754, "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01"),
        f"http-auth-aws-eventstream-{AWS_SDK}.jar": Pin(
            8705, "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd"
        ),
        f"http-auth-spi-{AWS_SDK}.jar": Pin(48042, "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c"),
        f"http-client-spi-{AWS_SDK}.jar": Pin(
            91685, "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb"
        ),
        f"identity-spi-{AWS_SDK}.jar": Pin(30963, "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf"),
        f"json-utils-{AWS_SDK}.jar": Pin(33225, "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc"),
        f"metrics-spi-{AWS_SDK}.jar": Pin(27262, "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487"),
        f"netty-nio-client-{AWS_SDK}.jar": Pin(
            292688, "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc"
        ),
        f"profiles-{AWS_SDK}.jar": Pin(50524, "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8"),
        f"protocol-core-{AWS_SDK}.jar": Pin(44371, "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5"),
        f"regions-{AWS_SDK}.jar": Pin(962286, "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca"),
        f"retries-{AWS_SDK}.jar": Pin(66309, "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469"),
        f"retries-spi-{AWS_SDK}.jar": Pin(31487, "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd"),
        f"s3-{AWS_SDK}.jar": Pin(4084242, "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc"),
        f"s3-transfer-manager-{AWS_SDK}.jar": Pin(
            251117, "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476"
        ),
        f"sdk-core-{AWS_SDK}.jar": Pin(1040729, "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4"),
        f"sso-{AWS_SDK}.jar": Pin(397542, "a404c3d77e1d8c76e28741faa01423ccaf124cbdbb4d393d62912e323659b8c9"),
        f"sts-{AWS_SDK}.jar": Pin(545150, "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2"),
        f"third-party-jackson-core-{AWS_SDK}.jar": Pin(
            535001, "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea"
        ),
        f"utils-{AWS_SDK}.jar": Pin(241618, "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8"),
        f"utils-lite-{AWS_SDK}.jar": Pin(8798, "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be"),
    },
    "--s3",
    (
        "org.apache.hadoop.fs.s3a.S3AFileSystem",
        f"{_AWS}.auth.credentials.DefaultCredentialsProvider",
        f"{_AWS}.services.sts.StsClient",
    ),
)

GCS = Package(
    "Hadoop's client for Google Cloud Storage",
    f"org.apache.hadoop:hadoop-gcp:{HADOOP}",
    "org.apache.hadoop:hadoop-c*,com.*:*,io.*:*",  # its JAR has what it needs under names of its own
    {
        f"hadoop-gcp-{HADOOP}.jar": Pin(
            35458913, "25686b2e711f5d8a5b08bef3489e62ccd046310dd4adf65b9ea216d9f53ddc3f", "org.apache.hadoop"
        )
    },
    "--gcs",
    ("org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",),
)

AZURE = Package(
    "Hadoop's client for Azure",
    f"org.apache.hadoop:hadoop-azure:{HADOOP}",
    # The old SDK is for `wasb:`, which lakestream does not use.
    "org.apache.hadoop:hadoop-c*,org.apache.hadoop.thirdparty:*,com.*:*,org.wildfly.openssl:*,"
    "org.apache.httpcomponents:*,commons-*:*,org.slf4j:*",
    {
        f"hadoop-azure-{HADOOP}.jar": Pin(
            643815, "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663", "org.apache.hadoop"
        ),
        "HdrHistogram-2.1.12.jar": Pin(
            173763,
            "9b47fbae444feaac4b7e04f0ea294569e4bc282bc69d8c2ce2ac3f23577281e2",
            "org.hdrhistogram",
            "BSD-2-Clause",
        ),
    },
    "--azure",
    ("org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",),
)

CLOUDS = {"s3": S3, "gcs": GCS, "azure": AZURE}
"""Packages by the name of the cloud (lakestream/lake/storage/clouds)."""
