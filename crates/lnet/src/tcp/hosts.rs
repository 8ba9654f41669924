//! How many connections each host has: one that opens more than its share leaves the others theirs.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

/// Counts of one kind of connection, by the address that they come from.
#[derive(Debug)]
pub(super) struct Hosts {
    max: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One that is counted; dropping it ends that.
#[derive(Debug)]
pub(super) struct Guest(Arc<Hosts>, IpAddr);

impl Hosts {
    /// With so many of one host at most.
    pub(super) fn new(max: usize) -> Arc<Hosts> {
        Arc::new(Hosts {
            max: max.max(1),
            counts: Mutex::default(),
        })
    }

    /// Counts one more; `None` when the host has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, host: IpAddr) -> Option<Guest> {
        let mut counts = self.counts.lock();
        let count = counts.entry(host).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Guest(self.clone(), host))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.0.counts.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.1) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn one_hosts_connections_are_not_anothers() {
        let [a, b] = [1, 2].map(|n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n)));
        let hosts = Hosts::new(2);
        let first = hosts.enter(a);
        let second = hosts.enter(a);
        assert!(first.is_some() && second.is_some() && hosts.enter(a).is_none());
        assert!(hosts.enter(b).is_some());
        drop(first);
        assert!(hosts.enter(a).is_some());
        drop(second);
        assert!(hosts.counts.lock().is_empty(), "who is gone is forgotten");
    }
}
