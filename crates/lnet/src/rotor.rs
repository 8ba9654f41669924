//! `portal_rotor`: the choice of the partition on which a request is queued. It applies only to
//! requests (PUTs to lazy portals); replies and bulk data are delivered directly to their waiters.
//!
//! Each receiving partition has its own round-robin counter, so partitions do not contend.

use cpt::CptId;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use wire::Nid;

/// The distribution of requests, under Lustre's names and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortalRotor {
    /// A request is queued on the partition that receives it. If its service does not run there,
    /// the partitions of the service take turns.
    Off,
    /// All requests are distributed round robin over the partitions of their service.
    On,
    /// Routed requests are distributed round robin, because all requests of one router arrive on
    /// the partition of its connections. Other requests are distributed as with `Off`.
    RrRt,
    /// The hash of the sender's NID selects the partition of a routed request. Other requests are
    /// distributed as with `Off`.
    #[default]
    HashRt,
}

impl PortalRotor {
    /// Mode, name and description, indexed by Lustre's number.
    const ALL: [(PortalRotor, &str, &str); 4] = [
        (
            PortalRotor::Off,
            "OFF",
            "requests are queued on the partition that receives them",
        ),
        (
            PortalRotor::On,
            "ON",
            "all requests go round robin to the partitions of their service",
        ),
        (
            PortalRotor::RrRt,
            "RR_RT",
            "routed requests go round robin to the partitions of their service",
        ),
        (
            PortalRotor::HashRt,
            "HASH_RT",
            "routed requests go to the partition selected by the hash of their sender's NID",
        ),
    ];

    /// A description in one line.
    pub fn about(self) -> &'static str {
        PortalRotor::ALL[self as usize].2
    }
}

impl fmt::Display for PortalRotor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PortalRotor::ALL[*self as usize].1)
    }
}

impl FromStr for PortalRotor {
    type Err = String;

    /// Accepts a name or its number.
    fn from_str(text: &str) -> Result<PortalRotor, String> {
        let matches = |(i, (_, name, _)): &(usize, &(_, &str, _))| {
            name.eq_ignore_ascii_case(text) || text == i.to_string()
        };
        let found = PortalRotor::ALL.iter().enumerate().find(matches);
        found
            .map(|(_, (rotor, ..))| *rotor)
            .ok_or_else(|| "expected OFF, ON, RR_RT or HASH_RT (0 to 3)".to_owned())
    }
}

/// The current mode of the node.
#[derive(Debug)]
pub(crate) struct Rotor(AtomicU8);

/// The round-robin counters of one portal, one for each receiving partition.
#[derive(Debug)]
pub(crate) struct RoundRobin(Vec<Counter>);

#[derive(Debug)]
#[repr(align(64))]
struct Counter(AtomicUsize);

impl RoundRobin {
    /// Counters for `cpts` partitions. Each starts with the number of its partition.
    pub(crate) fn new(cpts: usize) -> RoundRobin {
        RoundRobin(
            (0..cpts.max(1))
                .map(|cpt| Counter(AtomicUsize::new(cpt)))
                .collect(),
        )
    }

    fn next(&self, arrival: CptId) -> usize {
        self.0[arrival.0 % self.0.len()].0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Rotor {
    pub(crate) fn new(mode: PortalRotor) -> Rotor {
        Rotor(AtomicU8::new(mode as u8))
    }

    pub(crate) fn set(&self, mode: PortalRotor) {
        self.0.store(mode as u8, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self) -> PortalRotor {
        PortalRotor::ALL[usize::from(self.0.load(Ordering::Relaxed)) % 4].0
    }

    /// The partition for a request from `src` that arrived on `arrival`: one of `service_cpts`, the
    /// partitions of the service.
    pub(crate) fn choose(
        &self,
        round_robin: &RoundRobin,
        service_cpts: &[CptId],
        arrival: CptId,
        src: Nid,
        routed: bool,
    ) -> CptId {
        let index = match self.mode() {
            PortalRotor::On => round_robin.next(arrival),
            PortalRotor::RrRt if routed => round_robin.next(arrival),
            PortalRotor::HashRt if routed => cpt::nid_hash(src.0),
            _ if service_cpts.contains(&arrival) => return arrival,
            // The service does not run on `arrival`: use all of its partitions evenly.
            _ => round_robin.next(arrival),
        };
        service_cpts
            .get(index % service_cpts.len().max(1))
            .copied()
            .unwrap_or(arrival)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{PortalRotor, Rotor, RoundRobin};
    use cpt::CptId;
    use wire::Nid;

    const SRC: Nid = Nid(0x0002_0000_0a00_0001);

    /// The partitions chosen for six requests that arrive on `arrival`, for a service on partitions
    /// 1 to 3.
    fn choices(mode: PortalRotor, routed: bool, arrival: usize) -> Vec<usize> {
        let (rotor, round_robin) = (Rotor::new(mode), RoundRobin::new(4));
        let service_cpts = [CptId(1), CptId(2), CptId(3)];
        (0..6)
            .map(|_| {
                rotor
                    .choose(&round_robin, &service_cpts, CptId(arrival), SRC, routed)
                    .0
            })
            .collect()
    }

    #[test]
    fn each_mode_distributes_as_documented() {
        assert_eq!(choices(PortalRotor::Off, true, 3), [3; 6]);
        assert_eq!(choices(PortalRotor::On, false, 3), [1, 2, 3, 1, 2, 3]);
        assert_eq!(choices(PortalRotor::RrRt, false, 1), [1; 6]);
        assert_eq!(choices(PortalRotor::RrRt, true, 3), [1, 2, 3, 1, 2, 3]);
        assert_eq!(choices(PortalRotor::HashRt, false, 2), [2; 6]);
        // The bytes of the NID sum up to 13, and 13 % 3 = 1 selects the second partition.
        assert_eq!(choices(PortalRotor::HashRt, true, 1), [2; 6]);
    }

    #[test]
    fn requests_arriving_outside_their_service_go_round_robin() {
        for mode in [PortalRotor::Off, PortalRotor::RrRt, PortalRotor::HashRt] {
            assert_eq!(choices(mode, false, 0), [1, 2, 3, 1, 2, 3], "{mode}");
        }
    }

    #[test]
    fn modes_are_parsed_from_names_and_numbers() {
        for (n, name) in ["OFF", "ON", "RR_RT", "HASH_RT"].into_iter().enumerate() {
            let rotor: PortalRotor = name.parse().unwrap();
            assert_eq!(
                (rotor, rotor.to_string()),
                (n.to_string().parse().unwrap(), name.to_owned())
            );
        }
        assert!("4".parse::<PortalRotor>().is_err() && "".parse::<PortalRotor>().is_err());
    }
}
