//! The metrics: their names, kinds and descriptions. Names that begin with `lustre_` are those of
//! the public exporter for Lustre (lustrefs-exporter), with its labels.

/// The meaning of a metric's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Counts of durations by size.
    Histogram,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

/// Declares metrics and the list of all.
macro_rules! families {
    ($($id:ident, $name:literal, $kind:ident, $help:literal;)*) => {
        $(pub(crate) const $id: Family = Family { name: $name, kind: Kind::$kind, help: $help };)*
        /// All metrics.
        #[cfg(test)]
        pub(crate) const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    READ_SAMPLES, "lustre_read_samples_total", Counter, "Number of reads from an OST";
    READ_MIN, "lustre_read_minimum_size_bytes", Gauge, "Smallest read of an OST, in bytes";
    READ_MAX, "lustre_read_maximum_size_bytes", Gauge, "Largest read of an OST, in bytes";
    READ_BYTES, "lustre_read_bytes_total", Counter, "Bytes read from an OST";
    WRITE_SAMPLES, "lustre_write_samples_total", Counter, "Number of writes to an OST";
    WRITE_MIN, "lustre_write_minimum_size_bytes", Gauge, "Smallest write of an OST, in bytes";
    WRITE_MAX, "lustre_write_maximum_size_bytes", Gauge, "Largest write of an OST, in bytes";
    WRITE_BYTES, "lustre_write_bytes_total", Counter, "Bytes written to an OST";
    STATS, "lustre_stats_total", Counter, "Operations of an MDT";
    STATS_MIN, "lustre_stats_time_min", Gauge, "Shortest operation of an MDT, in microseconds";
    STATS_MAX, "lustre_stats_time_max", Gauge, "Longest operation of an MDT, in microseconds";
    STATS_TIME, "lustre_stats_time_total", Gauge, "Time of all operations of an MDT, in microseconds";
    STATS_START, "lustre_stats_start_time", Gauge, "When the operations of a target were last cleared, in seconds since 1970";
    EXPORT_STATS, "lustre_client_export_stats_total", Counter, "Operations of clients, by NID";
    EXPORT_TIME, "lustre_client_export_milliseconds_total", Counter, "Time of the operations of the clients with a NID; microseconds, as in the exporter for Lustre";
    EXPORT_BYTES, "lustre_client_export_bytes_total", Counter, "Bytes read and written by the clients with a NID";
    EXPORTS, "lustre_exports_total", Gauge, "Connected clients of an OST, servers included";
    EXPORTS_DIRTY, "lustre_exports_dirty_total", Gauge, "Dirty data in the caches of an OST's clients, in bytes";
    EXPORTS_GRANTED, "lustre_exports_granted_total", Gauge, "Space granted to an OST's clients, in bytes";
    EXPORTS_PENDING, "lustre_exports_pending_total", Gauge, "Granted space that writes in progress use, in bytes";
    CONNECTED_CLIENTS, "lustre_connected_clients", Gauge, "Connected clients of an MDT, without servers";
    CAPACITY, "lustre_capacity_kilobytes", Gauge, "Space of a target, in KiB";
    FREE, "lustre_free_kilobytes", Gauge, "Free space of a target, in KiB";
    AVAILABLE, "lustre_available_kilobytes", Gauge, "Free space of a target without its reserve, in KiB";
    INODES_MAX, "lustre_inodes_maximum", Gauge, "Inodes of a target";
    INODES_FREE, "lustre_inodes_free", Gauge, "Free inodes of a target";
    LOCK_COUNT, "lustre_lock_count_total", Gauge, "Locks of a target's namespace";
    LOCK_TIMEOUTS, "lustre_lock_timeout_total", Counter, "Clients that did not release a lock in time";
    JOB_READ_SAMPLES, "lustre_job_read_samples_total", Counter, "Reads of a job";
    JOB_READ_MIN, "lustre_job_read_minimum_size_bytes", Gauge, "Smallest read of a job, in bytes";
    JOB_READ_MAX, "lustre_job_read_maximum_size_bytes", Gauge, "Largest read of a job, in bytes";
    JOB_READ_BYTES, "lustre_job_read_bytes_total", Counter, "Bytes read by a job";
    JOB_WRITE_SAMPLES, "lustre_job_write_samples_total", Counter, "Writes of a job";
    JOB_WRITE_MIN, "lustre_job_write_minimum_size_bytes", Gauge, "Smallest write of a job, in bytes";
    JOB_WRITE_MAX, "lustre_job_write_maximum_size_bytes", Gauge, "Largest write of a job, in bytes";
    JOB_WRITE_BYTES, "lustre_job_write_bytes_total", Counter, "Bytes written by a job";
    JOB_STATS, "lustre_job_stats_total", Counter, "Operations of a job";
    HEALTHY, "lustre_health_healthy", Gauge, "1: all targets of the process work";
    BUILD_INFO, "nacre_build_info", Gauge, "Always 1; the label has the version";
    OPERATION_TIME, "nacre_operation_duration_seconds", Histogram, "Time of a target's operations";
    OPERATION_BYTES, "nacre_operation_bytes_total", Counter, "Bytes read from and written to a target";
    REQUESTS, "nacre_service_requests_total", Counter, "Requests that a service has started";
    QUEUE_TIME, "nacre_service_queue_duration_seconds", Histogram, "Time of requests in a service's queue";
    LOCKS, "nacre_locks", Gauge, "Locks of a namespace: granted and waiting at a server, held at a client";
    CACHED_INODES, "nacre_cached_inodes", Gauge, "Inodes in an MDT's cache";
    GRANTED, "nacre_granted_bytes", Gauge, "Space granted to an OST's clients";
    DIRTY, "nacre_dirty_bytes", Gauge, "Dirty data in the caches of an OST's clients";
    CLIENT_DIRTY, "nacre_client_dirty_bytes", Gauge, "Dirty data of a mount for an OST";
    CLIENT_GRANT, "nacre_client_grant_bytes", Gauge, "Space that an OST has granted to a mount";
    CLIENTS, "nacre_clients", Gauge, "Connected clients of a target, servers included";
    EVICTIONS, "nacre_evictions_total", Counter, "Clients that a target has evicted since its start";
    RECONNECTS, "nacre_reconnects_total", Counter, "Reconnects of a target's clients since its start";
    SPACE, "nacre_space_bytes", Gauge, "Space of a target";
    SPACE_FREE, "nacre_space_free_bytes", Gauge, "Free space of a target";
    CONNECTED, "nacre_connected", Gauge, "1: a server or mount is connected to this target; 0: it is not";
    OST_EXCLUDED, "nacre_ost_excluded", Gauge, "1: new files avoid the OST: it is full, or the administrator excludes it";
    DAMAGED_BLOCKS, "nacre_damaged_blocks", Gauge, "Blocks of 4 KiB with wrong data that the scrub of an OST has found since its start";
    SPACE_AVAILABLE, "nacre_space_available_bytes", Gauge, "Free space of a target without its reserve";
}
