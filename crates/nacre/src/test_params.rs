//! Parameters for unit tests.

use params::{KeyedStats, Param, ParamGuard, Registry, StatsTable, Value};
use std::sync::Arc;
use std::time::SystemTime;

/// Registers statistics of the OST `fs-OST0000`: `table` for the target and for the only client's
/// NID, and `jobs` as they are at `now`.
pub(crate) fn register_ost_stats(
    registry: &Registry,
    table: &Arc<StatsTable>,
    jobs: KeyedStats<String>,
    now: SystemTime,
) -> [ParamGuard; 3] {
    let stats = || {
        let table = table.clone();
        Param::read_only(move || table.stats())
    };
    [
        registry.register("obdfilter.fs-OST0000.stats", stats()),
        registry.register("obdfilter.fs-OST0000.exports.10.0.0.7@tcp.stats", stats()),
        registry.register(
            "obdfilter.fs-OST0000.job_stats",
            Param::read_only(move || Value::Jobs(jobs.all(now))),
        ),
    ]
}
