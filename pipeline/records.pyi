from collections.abc import Collection

from clusterbroker.pipeline.stored import Records

def decode(data: bytes, wanted: Collection[str], first: int, end: int) -> Records: ...
