//! Searches the nodes and stores of a run for states that no fault explains.

use std::sync::Arc;
use std::time::Duration;

use osd::Stores;
use osd::check::Finding;
use wire::{Errno, OstIndex};

use crate::cluster::{Cluster, Host};
use crate::history::Outcome;
use crate::names;

/// Interval of the checks of locks.
const LOCKS_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of locks in one lock namespace after the end of all calls.
const LOCKS_MAX: u64 = 1_000;

/// Whether a call failed for lack of space.
pub(crate) fn lacks_space(outcome: Option<&Outcome>) -> bool {
    matches!(
        outcome,
        Some(
            Outcome::Failed(Errno::ENOSPC)
                | Outcome::Name(
                    names::Outcome::Failed(Errno::ENOSPC) | names::Outcome::Unclear(Errno::ENOSPC)
                )
        )
    )
}

/// Whether only a fault can cause this outcome.
pub(crate) fn needs_fault(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Name(names::Outcome::Unclear(_)) => true,
        // Without a fault these mean that the file was removed, or that another client holds the
        // lock.
        Outcome::Failed(errno) => !matches!(*errno, Errno::ENOENT | Errno::ESTALE | Errno::EAGAIN),
        _ => false,
    }
}

/// Checks the locks of all servers until two conflict; returns a description of the conflict.
pub(crate) async fn find_conflict(cluster: Arc<Cluster>) -> String {
    loop {
        tokio::time::sleep(LOCKS_INTERVAL).await;
        for host in cluster.servers.iter().filter(|host| host.is_up()) {
            let Some(node) = host.node() else { continue };
            let of_osts = node.osts().into_iter().flat_map(|ost| ost.granted_conflicts());
            let of_mdts = node.mdts().into_iter().flat_map(|mdt| mdt.granted_conflicts());
            if let Some(conflict) = of_mdts.chain(of_osts).next() {
                return format!("node {}: conflicting locks are granted: {conflict}", host.id);
            }
        }
    }
}

/// The findings of a check of all stores, each with its target.
pub async fn check_file_system(cluster: &Cluster) -> Result<Vec<(String, Finding)>, String> {
    let show = |e: &dyn std::fmt::Display| e.to_string();
    let (mut mdts, mut osts) = (Vec::new(), Vec::new());
    for (name, index, disk) in cluster.servers.iter().flat_map(|host| host.targets()) {
        if name.contains("MGS") {
            continue;
        }
        let stores = disk.stores();
        let entries = stores.open_index().await.map_err(|e| show(&e))?;
        if name.contains("MDT") {
            mdts.push((name, index, Arc::new(mdt::store::Store::new(entries))));
            continue;
        }
        let objects = stores.open_objects(&entries).await.map_err(|e| show(&e))?;
        let (ost, files) = (OstIndex(index), disk.object_files());
        osts.push((name, ost, ost::check::Store::on(ost, entries, objects, files)));
    }
    fsck::examine(mdts, osts).await.map_err(|e| show(&e))
}

/// Counters of a node that are too high after the end of all calls: dirty data, and locks.
pub(crate) fn find_leftovers(host: &Host) -> Vec<String> {
    let Some(node) = host.node() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (pattern, most) in [
        ("osc.*.cur_dirty_bytes", 0),
        ("ldlm.namespaces.*.lock_count", LOCKS_MAX),
    ] {
        for (name, value) in node.registry().get(pattern) {
            if value.trim().parse::<u64>().is_ok_and(|value| value > most) {
                found.push(format!(
                    "node {}: {name} is {}, after all calls",
                    host.id,
                    value.trim()
                ));
            }
        }
    }
    found
}

/// Whether a server evicted the client: each eviction begins a generation of the import. (The list
/// of an import's states has only the last ones.)
pub(crate) fn was_evicted(host: &Host) -> bool {
    let Some(node) = host.node() else { return false };
    let imports = node.registry().get("*.*.import");
    let mut generations = imports.iter().flat_map(|(_, text)| text.lines());
    generations.any(|line| line.trim().strip_prefix("generation: ").is_some_and(|n| n != "1"))
}
