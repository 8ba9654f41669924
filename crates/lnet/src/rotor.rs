//! `portal_rotor`: on which partition a request is queued when it need not be the one that received it. Only requests (what
//! comes to a lazy portal) are turned; replies and bulk belong to whoever waits for them.
//!
//! Each receiving partition turns a wheel of its own, so that turning shares nothing.

use cpt::CptId;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use wire::Nid;

/// How requests are spread, under Lustre's names and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortalRotor {
    /// A request is queued where it arrives, if its service is there; else it goes round.
    Off,
    /// All requests go round all partitions of their service.
    On,
    /// Those that a router brings go round; one router is one connection, of one partition.
    RrRt,
    /// Those that a router brings go where the NID that sent them hashes to.
    #[default]
    HashRt,
}

impl PortalRotor {
    const ALL: [(PortalRotor, &str, &str); 4] = [
        (
            PortalRotor::Off,
            "OFF",
            "requests are queued on the partition that receives them",
        ),
        (
            PortalRotor::On,
            "ON",
            "all requests go round the partitions of their service",
        ),
        (
            PortalRotor::RrRt,
            "RR_RT",
            "requests that a router brings go round the partitions of their service",
        ),
        (
            PortalRotor::HashRt,
            "HASH_RT",
            "requests that a router brings go to the partition that their sender's NID hashes to",
        ),
    ];

    /// What it does, in a line.
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

    /// A name, or its number.
    fn from_str(text: &str) -> Result<PortalRotor, String> {
        let is = |(i, (_, name, _)): &(usize, &(_, &str, _))| {
            name.eq_ignore_ascii_case(text) || text == i.to_string()
        };
        let found = PortalRotor::ALL.iter().enumerate().find(is);
        found
            .map(|(_, (rotor, ..))| *rotor)
            .ok_or_else(|| "expected OFF, ON, RR_RT or HASH_RT (0 to 3)".to_owned())
    }
}

/// The node's rotor: its mode.
#[derive(Debug)]
pub(crate) struct Rotor(AtomicU8);

/// One portal's wheels: for each partition that receives, whose turn is next.
#[derive(Debug)]
pub(crate) struct Wheels(Vec<Wheel>);

#[derive(Debug)]
#[repr(align(64))]
struct Wheel(AtomicUsize);

impl Wheels {
    /// Each begins with its own partition.
    pub(crate) fn new(cpts: usize) -> Wheels {
        Wheels((0..cpts.max(1)).map(|cpt| Wheel(AtomicUsize::new(cpt))).collect())
    }

    fn turn(&self, at: CptId) -> usize {
        self.0[at.0 % self.0.len()].0.fetch_add(1, Ordering::Relaxed)
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

    /// The partition, of those that the portal's service runs on, for a request that arrived on `at` from `src`.
    pub(crate) fn place(&self, wheels: &Wheels, on: &[CptId], at: CptId, src: Nid, routed: bool) -> CptId {
        let n = match self.mode() {
            PortalRotor::On => wheels.turn(at),
            PortalRotor::RrRt if routed => wheels.turn(at),
            PortalRotor::HashRt if routed => cpt::nid_hash(src.0),
            _ if on.contains(&at) => return at,
            // Its service is elsewhere: on all of its partitions alike.
            _ => wheels.turn(at),
        };
        on.get(n % on.len().max(1)).copied().unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{PortalRotor, Rotor, Wheels};
    use cpt::CptId;
    use wire::Nid;

    const SRC: Nid = Nid(0x0002_0000_0a00_0001);

    /// Where six requests go that arrive on `at`, of a service on partitions 1 to 3.
    fn places(mode: PortalRotor, routed: bool, at: usize) -> Vec<usize> {
        let (rotor, wheels) = (Rotor::new(mode), Wheels::new(4));
        let on = [CptId(1), CptId(2), CptId(3)];
        (0..6)
            .map(|_| rotor.place(&wheels, &on, CptId(at), SRC, routed).0)
            .collect()
    }

    #[test]
    fn each_mode_spreads_what_it_says() {
        assert_eq!(places(PortalRotor::Off, true, 3), [3; 6]);
        assert_eq!(places(PortalRotor::On, false, 3), [1, 2, 3, 1, 2, 3]);
        assert_eq!(places(PortalRotor::RrRt, false, 1), [1; 6]);
        assert_eq!(places(PortalRotor::RrRt, true, 3), [1, 2, 3, 1, 2, 3]);
        assert_eq!(places(PortalRotor::HashRt, false, 2), [2; 6]);
        // 2 + 10 + 1 = 13, the second of three.
        assert_eq!(places(PortalRotor::HashRt, true, 1), [2; 6]);
    }

    #[test]
    fn what_arrives_where_its_service_is_not_goes_round() {
        for mode in [PortalRotor::Off, PortalRotor::RrRt, PortalRotor::HashRt] {
            assert_eq!(places(mode, false, 0), [1, 2, 3, 1, 2, 3], "{mode}");
        }
    }

    #[test]
    fn modes_have_names_and_numbers() {
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
