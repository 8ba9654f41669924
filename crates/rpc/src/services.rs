//! The services that servers run, with their names, portals and thread limits (docs/protocol.md,
//! "PtlRPC").
//!
//! Where Lustre counts threads, Nacre counts slots: a partition handles at most as many requests
//! concurrently as it has slots.

use cpt::CptTable;
use wire::{
    FLD_REQUEST_PORTAL, LDLM_CANCEL_REQUEST_PORTAL, LDLM_CB_REQUEST_PORTAL, MDS_IO_PORTAL,
    MDS_READPAGE_PORTAL, MDS_REQUEST_PORTAL, MGS_REQUEST_PORTAL, OST_CREATE_PORTAL, OST_IO_PORTAL,
    OST_REQUEST_PORTAL, OUT_PORTAL, SEQ_CONTROLLER_PORTAL, SEQ_DATA_PORTAL, SEQ_METADATA_PORTAL,
};

/// Default of [`ServiceConfig::queue`]. A full queue stalls the sender's connection.
pub const QUEUE_PER_CPT: usize = 8192;

/// The partitions that a service runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// Every partition: a request is queued where it arrives, unless LNet's `portal_rotor` moves
    /// it.
    All,
    /// The first partition only.
    First,
    /// These partitions: a request that arrives elsewhere moves to one of them.
    Only(Vec<usize>),
}

/// The configuration of a service.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Lustre's name, as in `mds.MDS.mdt.stats`.
    pub name: &'static str,
    /// Request portal.
    pub portal: u32,
    /// Minimum of threads per partition; at least 3 are used.
    pub init: usize,
    /// Base of the thread limit per partition; 0: `max` divided by the number of partitions.
    pub base: usize,
    /// Maximum of threads on all partitions.
    pub max: usize,
    /// Threads added for each CPU of a partition.
    pub factor: usize,
    /// Threads on all partitions, if set by the administrator (`*_num_threads`).
    pub user: Option<usize>,
    /// The partitions that the service runs on.
    pub spread: Spread,
    /// Whether requests run on the CPUs of the partition that queued them.
    pub bind: bool,
    /// Maximum number of queued ordinary requests per partition. The same limit applies to
    /// high-priority requests, which have a queue of their own.
    pub queue: usize,
}

impl ServiceConfig {
    /// A service with the given (init, base, max, factor) thread numbers.
    pub const fn new(
        name: &'static str,
        portal: u32,
        (init, base, max, factor): (usize, usize, usize, usize),
        spread: Spread,
    ) -> ServiceConfig {
        ServiceConfig {
            name,
            portal,
            init,
            base,
            max,
            factor,
            user: None,
            spread,
            bind: true,
            queue: QUEUE_PER_CPT,
        }
    }

    /// The thread limit of each of `ncpts` partitions, by Lustre's rule.
    pub fn threads_per_cpt(&self, ncpts: usize, cpus: &Cpus) -> usize {
        let ncpts = ncpts.max(1);
        let init = self.init.max(INIT_MIN);
        if let Some(user) = self.user.filter(|&user| user > 0) {
            return (user.min(8 * self.max) / ncpts).max(init);
        }
        if self.base == 0 {
            return (self.max / ncpts).max(init);
        }
        let mut limit = self.base;
        if ncpts == 1 {
            // A single partition handles the load of all CPUs: add half the base, a quarter and so
            // on, less than the base in total.
            let steps = (1..usize::BITS).take_while(|i| cpus.all >> (i + 1) != 0 && self.base >> i != 0);
            limit += steps.map(|i| self.base >> i).sum::<usize>();
        }
        let mut factor = self.factor;
        if cpus.siblings > 1 {
            // A hardware thread counts for less than a core.
            factor = factor - (factor >> 1) + (factor >> 3);
        }
        let mut cpus_left = cpus.first;
        while cpus_left > 0 && factor > 0 {
            limit += cpus_left.min(4) * factor;
            factor -= 1;
            cpus_left = cpus_left.saturating_sub(4);
        }
        if limit * ncpts > self.max {
            limit = self.base.max(self.max / ncpts);
        }
        limit.max(init)
    }

    /// The minimum of threads of each of `ncpts` partitions.
    pub fn threads_min(&self, ncpts: usize) -> usize {
        let init = self.init.max(INIT_MIN);
        match self.user.filter(|&user| user > 0) {
            Some(user) => init.max(user.min(8 * self.max) / ncpts.max(1)),
            None => init,
        }
    }
}

/// Minimum of threads per partition: two, and one for high-priority requests.
const INIT_MIN: usize = 3;

/// The CPUs that the thread limits depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// CPUs of all partitions.
    pub all: usize,
    /// CPUs of the first partition, used for all partitions so that all have the same limit.
    pub first: usize,
    /// Hardware threads per core.
    pub siblings: usize,
}

impl Cpus {
    /// The CPUs of this process.
    pub fn of(cpts: &CptTable) -> Cpus {
        let mut cpus: Vec<usize> = cpts.iter().flat_map(|c| c.cpus().iter().copied()).collect();
        cpus.sort_unstable();
        cpus.dedup();
        Cpus {
            all: cpus.len(),
            first: cpts.iter().next().map_or(1, |c| c.cpus().len()),
            siblings: cpts.siblings(),
        }
    }
}

/// The services of an MGS.
pub const MGS: &[ServiceConfig] = &[ServiceConfig::new(
    "mgs",
    MGS_REQUEST_PORTAL,
    (3, 0, 32, 0),
    Spread::First,
)];

/// The services of an MDS.
pub const MDS: &[ServiceConfig] = &[
    ServiceConfig::new("mdt", MDS_REQUEST_PORTAL, (2, 64, 1024, 8), Spread::All),
    ServiceConfig::new("mdt_readpage", MDS_READPAGE_PORTAL, (2, 48, 256, 4), Spread::All),
    ServiceConfig::new("mdt_out", OUT_PORTAL, (2, 64, 1024, 8), Spread::All),
    ServiceConfig::new("mdt_seqs", SEQ_CONTROLLER_PORTAL, (2, 0, 256, 0), Spread::First),
    ServiceConfig::new("mdt_seqm", SEQ_METADATA_PORTAL, (2, 0, 256, 0), Spread::First),
    ServiceConfig::new("mdt_fld", FLD_REQUEST_PORTAL, (2, 0, 256, 0), Spread::First),
    ServiceConfig::new("mdt_io", MDS_IO_PORTAL, (3, 64, 512, 8), Spread::All),
];

/// The services of an OSS.
pub const OSS: &[ServiceConfig] = &[
    ServiceConfig::new("ost", OST_REQUEST_PORTAL, (3, 64, 512, 8), Spread::All),
    ServiceConfig::new("ost_create", OST_CREATE_PORTAL, (2, 8, 64, 1), Spread::All),
    ServiceConfig::new("ost_io", OST_IO_PORTAL, (3, 64, 512, 8), Spread::All),
    ServiceConfig::new("ost_seq", SEQ_DATA_PORTAL, (2, 8, 64, 1), Spread::All),
    ServiceConfig::new("ost_out", OUT_PORTAL, (2, 8, 64, 1), Spread::All),
];

/// The service of every node that grants locks.
pub const LDLM: &[ServiceConfig] = &[ServiceConfig::new(
    "ldlm_canceld",
    LDLM_CANCEL_REQUEST_PORTAL,
    (2, 24, 128, 8),
    Spread::All,
)];

/// The service of every node that holds locks; started with the [`crate::Ptlrpc`].
pub(crate) const CALLBACKS: ServiceConfig =
    ServiceConfig::new("ldlm_cbd", LDLM_CB_REQUEST_PORTAL, (2, 24, 128, 8), Spread::All);

#[cfg(test)]
mod tests {
    use super::{Cpus, MDS, OSS};

    fn cpus(all: usize, first: usize, siblings: usize) -> Cpus {
        Cpus { all, first, siblings }
    }

    #[test]
    fn thread_limits_follow_the_published_rule() {
        let mdt = &MDS[0];
        let one = |all| cpus(all, all, 1);
        assert_eq!(mdt.threads_per_cpt(1, &one(2)), 64 + 2 * 8);
        // One partition of 8 CPUs: 64 + 32 + 16 for the load of all, 4*8 + 4*7 for its CPUs.
        assert_eq!(mdt.threads_per_cpt(1, &one(8)), 64 + 32 + 16 + 32 + 28);
        assert_eq!(mdt.threads_per_cpt(16, &cpus(128, 8, 1)), 64);
        // Four partitions of 6 CPUs with two hardware threads per core: the factor is 8 - 4 + 1.
        assert_eq!(mdt.threads_per_cpt(4, &cpus(24, 6, 2)), 64 + 4 * 5 + 2 * 4);
        // A service on one of four partitions handles the load of all CPUs.
        assert_eq!(
            mdt.threads_per_cpt(1, &cpus(24, 6, 2)),
            64 + 32 + 16 + 8 + 4 * 5 + 2 * 4
        );
        let io = &OSS[2];
        assert_eq!(io.threads_per_cpt(4, &cpus(32, 8, 1)), 124);
        assert_eq!(super::MGS[0].threads_per_cpt(1, &one(4)), 32);
        let with_user_limit = super::ServiceConfig {
            user: Some(8),
            ..io.clone()
        };
        assert_eq!(with_user_limit.threads_per_cpt(2, &cpus(16, 8, 1)), 4);
        assert_eq!(
            (
                with_user_limit.threads_min(2),
                with_user_limit.threads_min(4),
                mdt.threads_min(1)
            ),
            (4, 3, 3)
        );
    }
}
