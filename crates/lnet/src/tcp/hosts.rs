//! How many connections each host has, and all have: a host that opens more than its share leaves the others theirs.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Counts of one kind of connection, by the host that they come from.
#[derive(Debug)]
pub(super) struct Hosts {
    max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    hosts: HashMap<Ipv4Addr, usize>,
    all: usize,
}

/// One that is counted; dropping it ends that.
#[derive(Debug)]
pub(super) struct Guest(Arc<Hosts>, Ipv4Addr);

/// Why there is no room for another connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The host has as many as one host may have.
    Host(usize),
    /// All hosts together have as many as there may be.
    All(usize),
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::Host(max) => write!(f, "this host has {max} others, the most that one may have"),
            Full::All(max) => write!(
                f,
                "there are {max}, the most that this process takes: raise its limit of open files (ulimit -Hn, LimitNOFILE)"
            ),
        }
    }
}

impl Hosts {
    /// With so many of all hosts together at most.
    pub(super) fn new(max: usize) -> Arc<Hosts> {
        Arc::new(Hosts {
            max: max.max(1),
            counts: Mutex::default(),
        })
    }

    /// Counts one more of a host that may have `host_max`.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn enter(self: &Arc<Self>, host: Ipv4Addr, host_max: usize) -> Result<Guest, Full> {
        let host_max = host_max.max(1);
        let mut counts = self.counts.lock();
        if counts.all >= self.max {
            return Err(Full::All(self.max));
        }
        let count = counts.hosts.entry(host).or_default();
        if *count >= host_max {
            return Err(Full::Host(host_max));
        }
        *count += 1;
        counts.all += 1;
        Ok(Guest(self.clone(), host))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.0.counts.lock();
        counts.all -= 1;
        if let Entry::Occupied(mut count) = counts.hosts.entry(self.1) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Full, Hosts};
    use std::net::Ipv4Addr;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn each_host_has_its_own_share_of_connections() {
        let hosts = Hosts::new(100);
        let first = hosts.enter(A, 2);
        let second = hosts.enter(A, 2);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(hosts.enter(A, 2).err(), Some(Full::Host(2)));
        assert!(hosts.enter(B, 2).is_ok());
        drop(first);
        assert!(hosts.enter(A, 2).is_ok());
        drop(second);
        assert!(
            hosts.counts.lock().hosts.is_empty(),
            "a host without connections is forgotten"
        );
    }

    #[test]
    fn all_hosts_together_have_a_limit() {
        let hosts = Hosts::new(3);
        let held = [hosts.enter(A, 2), hosts.enter(A, 2), hosts.enter(B, 2)];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(hosts.enter(B, 2).err(), Some(Full::All(3)));
        drop(held);
        assert!(hosts.enter(B, 2).is_ok());
    }
}
