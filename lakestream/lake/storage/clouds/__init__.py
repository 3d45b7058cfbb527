"""The clouds whose object stores can hold a lake, one description each.

Belongs here: what differs between them: the settings of obstore, Hadoop, deltalake and DuckDB, the variables of the
environment that these follow from, and the words of errors. object_storage.py has the operations, once for all.

In reading order:

- `cloud.py`: Description of a cloud.
- `urls.py`: URLs of lakes in object stores.
- `azure.py`: Azure Blob Storage and Azure Data Lake Storage Gen2.
- `gcs.py`: Google Cloud Storage.
- `s3.py`: Amazon S3 and stores that speak its protocol.
- `known.py`: The clouds that lakestream knows.
"""
