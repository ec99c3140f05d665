"""What users ask: files, streams and conversations, up to requests that are ready to decode."""
