"""Encryption at rest: files whose content is sealed, and their keys.

Belongs here: everything that knows of encryption below the server. The other parts of log/ read and write sealed files
as any others, through `Files`.

In reading order:

- `keys.py`: Keys of sealed files: master keys, the keys that they wrap, and the files of these.
- `content.py`: Content of one sealed file: its chunks, and which of them holds which bytes.
- `files.py`: Files whose content is sealed.
- `stores.py`: Sealing a whole store: beginning, converting, changing the master key.
"""
