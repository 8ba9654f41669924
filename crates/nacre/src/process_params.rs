//! Parameters of the process itself: version, services, CPU partitions.

use cpt::CptTable;
use params::{Param, ParamGuard, Registry};
use rpc::Ptlrpc;
use std::sync::Arc;

use crate::logging;

/// Registers the parameters until the caller drops the returned guards.
pub(crate) fn register_process_params(
    registry: &Registry,
    cpts: &Arc<CptTable>,
    rpc: &Arc<Ptlrpc>,
) -> Vec<ParamGuard> {
    let (cpts, rpc) = (cpts.clone(), Arc::downgrade(rpc));
    let distances = cpts.clone();
    let services = move || {
        let stats = rpc.upgrade().map(|rpc| rpc.stats()).unwrap_or_default();
        let row = |s: &rpc::ServiceStats| {
            let (name, cpt, handled) = (s.name, s.cpt, s.handled);
            let usec = s.busy.as_micros() / u128::from(handled.max(1));
            format!(
                "{name} cpt {cpt}: slots {} active {} queued {} handled {handled} dropped {} early {} usec {usec}\n",
                s.threads, s.active, s.queued, s.dropped, s.early
            )
        };
        stats.iter().map(row).collect()
    };
    let version = || format!("nacre {}", env!("CARGO_PKG_VERSION"));
    vec![
        registry.register(
            "version",
            Param::read_only(version).about("the version of this program"),
        ),
        registry.register(
            "nacre.log_level",
            Param::read_write(logging::levels, logging::set_levels)
                .about("levels of the log: off, error, warn, info, debug or trace, also CRATE=LEVEL"),
        ),
        registry.register(
            "nacre.log_format",
            Param::read_write(|| logging::format_name().to_owned(), logging::set_format)
                .about("format of the log: text or json"),
        ),
        registry.register(
            "services",
            Param::read_only(services).about("load and counters of each service on each CPU partition"),
        ),
        registry.register(
            "cpu_partition_table",
            Param::read_only(move || cpts.show()).about("the CPUs of each partition"),
        ),
        registry.register(
            "cpu_partition_distance",
            Param::read_only(move || distances.show_distances())
                .about("distances between the NUMA nodes of the partitions"),
        ),
    ]
}
