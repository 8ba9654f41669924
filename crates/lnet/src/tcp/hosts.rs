//! Limits on the number of connections, per host and over all hosts. They keep one host from using
//! up the descriptors of this process.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Numbers of connections by remote host.
#[derive(Debug)]
pub(super) struct HostLimits {
    /// Limit over all hosts.
    max: usize,
    counts: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    /// Numbers of connections of the hosts that have any.
    hosts: HashMap<Ipv4Addr, usize>,
    /// The sum over all hosts.
    all: usize,
}

/// A counted connection; dropping it decrements the count.
#[derive(Debug)]
pub(super) struct HostSlot(Arc<HostLimits>, Ipv4Addr);

/// Why another connection exceeds the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HostLimitError {
    /// The limit for one host.
    Host(usize),
    /// The limit for all hosts together.
    All(usize),
}

impl fmt::Display for HostLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostLimitError::Host(max) => write!(
                f,
                "its host already has {max} connections, the limit for one host"
            ),
            HostLimitError::All(max) => write!(
                f,
                "there are already {max} connections, the limit of this process: raise its limit of open files (ulimit -Hn, LimitNOFILE)"
            ),
        }
    }
}

impl HostLimits {
    /// Limits with at most `max` connections over all hosts.
    pub(super) fn new(max: usize) -> Arc<HostLimits> {
        Arc::new(HostLimits {
            max: max.max(1),
            counts: Mutex::default(),
        })
    }

    /// Counts one more connection of a host, which may have at most `host_max`.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn reserve(
        self: &Arc<Self>,
        host: Ipv4Addr,
        host_max: usize,
    ) -> Result<HostSlot, HostLimitError> {
        let host_max = host_max.max(1);
        let mut counts = self.counts.lock();
        if counts.all >= self.max {
            return Err(HostLimitError::All(self.max));
        }
        let count = counts.hosts.entry(host).or_default();
        if *count >= host_max {
            return Err(HostLimitError::Host(host_max));
        }
        *count += 1;
        counts.all += 1;
        Ok(HostSlot(self.clone(), host))
    }
}

impl Drop for HostSlot {
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
    use super::{HostLimitError, HostLimits};
    use std::net::Ipv4Addr;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn each_host_has_its_own_share_of_connections() {
        let hosts = HostLimits::new(100);
        let first = hosts.reserve(A, 2);
        let second = hosts.reserve(A, 2);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(hosts.reserve(A, 2).err(), Some(HostLimitError::Host(2)));
        assert!(hosts.reserve(B, 2).is_ok());
        drop(first);
        assert!(hosts.reserve(A, 2).is_ok());
        drop(second);
        assert!(
            hosts.counts.lock().hosts.is_empty(),
            "a host without connections is forgotten"
        );
    }

    #[test]
    fn all_hosts_together_have_a_limit() {
        let hosts = HostLimits::new(3);
        let held = [hosts.reserve(A, 2), hosts.reserve(A, 2), hosts.reserve(B, 2)];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(hosts.reserve(B, 2).err(), Some(HostLimitError::All(3)));
        drop(held);
        assert!(hosts.reserve(B, 2).is_ok());
    }
}
