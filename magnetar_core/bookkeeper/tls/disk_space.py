"""One question to one bookie: how much room its disks have. It works with bookies of Apache, too."""

from typing import Final

from magnetar_core.bookkeeper.tls.start_tls import open_stream
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.types import KIB
from magnetar_core.security.tls.contexts import Certificates

_READ_BYTES: Final = 4 * KIB


async def ask_disks(host: str, port: int, certificates: Certificates | None = None) -> DiskUsage:
    """Total and free space of the bookie at an address; over TLS with *certificates*.

    Raises OSError, MalformedFrame. The caller sets a time limit.
    """
    reader, writer = await open_stream(host, port, certificates)
    try:
        writer.write(v3.bookie_info_request(1))
        splitter = FrameSplitter()
        while True:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise ConnectionError("the connection was closed")
            for frame in splitter.feed(data):
                answer = v3.parse_response(frame)
                if answer.status != 0:
                    raise ConnectionError(f"answered with status {answer.status}")
                info = answer.getBookieInfoResponse
                return DiskUsage(info.totalDiskCapacity, info.freeDiskSpace)
    finally:
        writer.close()
