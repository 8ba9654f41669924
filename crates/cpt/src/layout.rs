//! Rules that divide the CPUs into partitions if the pattern does not list the CPUs of each
//! partition.
//!
//! There are three rules:
//!
//! - Per node: one partition for each NUMA node. This is the default, as in current Lustre, where
//!   `cpu_pattern` defaults to `N` (docs/protocol.md, "LNet"). A partition's memory is local, and
//!   small machines stay undivided.
//! - By the number of CPUs, [`estimate`]: two cores in each partition, or more to make the
//!   partitions equal. Current Lustre uses this rule for an empty pattern.
//! - By the published rule, [`published_count`]: the number of NUMA nodes, doubled or halved as the
//!   number of CPUs requires. The published measurements of partitions used this rule. Lustre
//!   replaced it because it ignores where memory is, so here the administrator must request it.
//!
//! The last two rules, and a number of partitions that the administrator sets, keep the CPUs of one
//! core in one partition if there are at least as many cores as partitions. Sizes then differ by
//! one core at most.

use crate::{CptError, Topology, pattern};

/// A `cpu_npartitions` above the estimated number times this causes a warning.
const WARN_FACTOR: usize = 4;

/// The administrator's settings for partitions.
#[derive(Debug, Clone, Default)]
pub struct CptConfig {
    /// Number of partitions; 0 leaves the number to `published_rule` and the pattern.
    pub cpu_npartitions: usize,
    /// Use the published rule when `cpu_npartitions` is 0.
    pub published_rule: bool,
    /// `None` or `N`: one partition per NUMA node. Empty: the number of [`estimate`]. A number that
    /// `cpu_npartitions` or `published_rule` sets has precedence over these values. Any other value
    /// is a pattern.
    pub cpu_pattern: Option<String>,
    /// Lets partitions share CPUs when `cpu_npartitions` exceeds the number of CPUs. Only for tests
    /// of partitions on small machines: it makes nothing faster.
    pub force_partitions: bool,
}

/// Divides the CPUs of `topology` according to `cfg`. Returns the CPUs of each partition.
///
/// # Errors
///
/// The pattern is malformed, contradicts `cpu_npartitions` or names CPUs that this process cannot
/// use, or there are more partitions than CPUs.
pub fn layout(topology: &Topology, cfg: &CptConfig) -> Result<Vec<Vec<usize>>, CptError> {
    let pattern = cfg.cpu_pattern.as_deref().map_or("N", str::trim);
    let number = match (cfg.cpu_npartitions, cfg.published_rule) {
        (0, true) => Some(published_count(topology)),
        (0, false) => None,
        (n, _) => Some(n),
    };
    let divide = |n: usize| divide_evenly(topology, n, cfg.force_partitions);
    match (pattern, number) {
        ("N" | "n", None) => Ok(per_node(topology)),
        ("", None) => divide(estimate(topology)),
        ("N" | "n" | "", Some(n)) => {
            let estimated = estimate(topology);
            if n > WARN_FACTOR * estimated && !cfg.force_partitions {
                tracing::warn!(
                    "cpu_npartitions={n} is high for this machine: its CPUs suggest {estimated} partitions"
                );
            }
            divide(n)
        }
        (pattern, number) => pattern::parse(topology, pattern, number, &divide),
    }
}

/// One partition for each NUMA node.
pub(crate) fn per_node(topology: &Topology) -> Vec<Vec<usize>> {
    topology.nodes.iter().map(|n| n.cpus()).collect()
}

/// The number of partitions that current Lustre chooses for a machine: 1 for up to 4 CPUs.
/// Otherwise the least n >= 2 such that n partitions of 2 cores hold all CPUs, lowered until it
/// divides the number of CPUs.
pub fn estimate(topology: &Topology) -> usize {
    let ncpu = topology.cpus().len();
    if ncpu <= 4 {
        return 1;
    }
    let mut ncpt = 2;
    while ncpu > 2 * topology.siblings() * ncpt {
        ncpt += 1;
    }
    largest_divisor(ncpu, ncpt)
}

/// The number of partitions by the published rule: 1 for up to 4 CPUs. Otherwise N is the least
/// power of two with N >= 2 and CPUs <= 2N². The number of NUMA nodes is halved until it is at most
/// N, and doubled while it stays at most N. The result is lowered until it divides the number of
/// CPUs.
pub fn published_count(topology: &Topology) -> usize {
    let (ncpu, mut ncpt) = (topology.cpus().len(), topology.nodes.len());
    if ncpu <= 4 {
        return 1;
    }
    let mut n = 2;
    while ncpu > 2 * n * n {
        n *= 2;
    }
    while ncpt > n {
        ncpt /= 2;
    }
    while ncpt * 2 <= n {
        ncpt *= 2;
    }
    largest_divisor(ncpu, ncpt)
}

/// The largest divisor of `ncpu` that is at most `n`.
fn largest_divisor(ncpu: usize, n: usize) -> usize {
    (1..=n).rev().find(|n| ncpu.is_multiple_of(*n)).unwrap_or(1)
}

/// Divides the CPUs into `n` partitions: core by core, or CPU by CPU if there are fewer cores than
/// partitions. With `force`, `n` may exceed the number of CPUs: each partition then has one CPU,
/// and CPUs are used several times.
fn divide_evenly(topology: &Topology, n: usize, force: bool) -> Result<Vec<Vec<usize>>, CptError> {
    let cpus = topology.cpus();
    if n > cpus.len() && force {
        return Ok(cpus.iter().cycle().take(n).map(|&cpu| vec![cpu]).collect());
    }
    if n > cpus.len() {
        return Err(CptError::TooManyPartitions {
            wanted: n,
            online: cpus.len(),
        });
    }
    let mut units: Vec<Vec<usize>> = topology.cores().cloned().collect();
    if n > units.len() {
        units = cpus.into_iter().map(|cpu| vec![cpu]).collect();
    }
    let (size, larger) = (units.len() / n, units.len() % n);
    let mut rest = units.into_iter();
    let take = |i| {
        let mut cpus: Vec<usize> = rest
            .by_ref()
            .take(size + usize::from(i < larger))
            .flatten()
            .collect();
        cpus.sort_unstable();
        cpus
    };
    Ok((0..n).map(take).collect())
}
