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
        stats.iter().map(row).collect::<String>()
    };
    let registry_of_health = registry.clone();
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
            "health_check",
            Param::read_only(move || health(&registry_of_health))
                .about("whether the stores of all targets work"),
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

/// The health of all targets of the process, in Lustre's words.
fn health(registry: &Registry) -> String {
    let target_of = |name: &str| name.split('.').nth(1).unwrap_or_default().to_owned();
    let unhealthy: Vec<String> = registry
        .get("osd-*.*.store_failure")
        .into_iter()
        .filter(|(_, failure)| !failure.is_empty())
        .map(|(name, _)| format!("device {} reported unhealthy\n", target_of(&name)))
        .collect();
    match unhealthy.as_slice() {
        [] => "healthy".to_owned(),
        _ => unhealthy.concat() + "NOT HEALTHY\n",
    }
}

#[cfg(test)]
mod tests {
    use super::health;
    use params::{Param, Registry};

    #[test]
    fn process_is_healthy_if_all_its_targets_are() {
        let registry = Registry::default();
        let target = |name: &str, failure: &'static str| {
            let name = format!("osd-local.fs-{name}.store_failure");
            registry.register(name, Param::read_only(move || failure.to_owned()))
        };
        let _well = target("OST0000", "");
        assert_eq!(health(&registry), "healthy");
        let _failed = target("OST0001", "no space");
        assert_eq!(
            health(&registry),
            "device fs-OST0001 reported unhealthy\nNOT HEALTHY\n"
        );
    }
}
