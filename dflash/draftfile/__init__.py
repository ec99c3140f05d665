"""The draft file: columns, header, writer, reader, digests."""
