"""Backups of a standalone: a copy of its folder as a `kill -9` at one moment would leave it.

manifest      what is in a backup, and which backup may be restored (no IO)
snapshot      in the process: links to the files of that moment
door          in the process: the socket in the data folder, where a snapshot is asked for
copying       in the command: snapshot → folder or tar
restoring     in the command: folder or tar → data folder
dumping       the records of a metadata store as a file, and back
topic_format  a topic as a stream (no IO)
topic_copying a topic → that stream → another topic, over the brokers' protocol
"""
