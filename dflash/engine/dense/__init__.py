"""Dense recording: a verified draft at every committed position of an answer."""
