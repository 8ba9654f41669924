//! Parameters of the node as a whole: services, CPU partitions, health.

use std::sync::Arc;

use cpt::CptTable;
use params::{Param, ParamGuard, Registry};
use rpc::Ptlrpc;

/// Registers the parameters until the caller drops the returned guards.
pub(crate) fn register(registry: &Registry, rpc: &Arc<Ptlrpc>) -> Vec<ParamGuard> {
    let (cpts, rpc): (Arc<CptTable>, _) = (rpc.lnet().cpts().clone(), Arc::downgrade(rpc));
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
    vec![
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

/// The health of all targets of the node, in Lustre's words.
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
    fn node_is_healthy_if_all_its_targets_are() {
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
