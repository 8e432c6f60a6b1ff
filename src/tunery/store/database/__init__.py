"""The database under the store: where it is, its tables and their versions, its connections and their faults."""
