//! CPU partitions: topology, patterns, and one pinned runtime per partition.
