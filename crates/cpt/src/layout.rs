//! How CPUs are divided into partitions when no pattern names them one by one. Pure.
//!
//! There are three rules, and all can be had. *Per node*: one partition for each NUMA node. It is the default, as in
//! today's Lustre (guide 12.1), whose `cpu_pattern` is `N` without word: memory then is always near, and on small machines
//! nothing is divided. *By the number of CPUs*, [`estimate`], is what today's Lustre does for an empty pattern: about four
//! cores each. *By the published rule*, [`published`], is what the demonstrations of partitions were measured with: the
//! power of two N with 2(N-1)² < CPUs <= 2N², brought to a multiple or a part of the nodes; it makes more partitions than
//! nodes on large sockets, and fewer than the estimate on machines with many CPUs. It was replaced in Lustre since it takes no
//! account of where memory is, which is why it has to be asked for here too.
//!
//! CPUs that share a core stay together, as published, as long as there are no more partitions than cores; so sizes
//! differ by a core at most.

use crate::{CptError, Topology, pattern};

/// What the administrator may say about partitions.
#[derive(Debug, Clone, Default)]
pub struct CptConfig {
    /// How many partitions; 0 leaves it to the pattern.
    pub cpu_npartitions: usize,
    /// As many partitions as the published rule says, where `cpu_npartitions` says nothing.
    pub published_rule: bool,
    /// `None` or `N`: one partition per NUMA node, unless a number is given. Empty: the estimate. Else a pattern.
    pub cpu_pattern: Option<String>,
    /// Lets partitions share CPUs where `cpu_npartitions` is larger than their number: for tests of what partitions do
    /// on a small machine. It makes nothing faster.
    pub force_partitions: bool,
}

/// Divides the CPUs of `topology` as `cfg` says: for each partition its CPUs.
pub fn layout(topology: &Topology, cfg: &CptConfig) -> Result<Vec<Vec<usize>>, CptError> {
    let pattern = cfg.cpu_pattern.as_deref().map_or("N", str::trim);
    let number = match (cfg.cpu_npartitions, cfg.published_rule) {
        (0, true) => Some(published(topology)),
        (0, false) => None,
        (n, _) => Some(n),
    };
    let even = |n: usize| divide(topology, n, cfg.force_partitions);
    match (pattern, number) {
        ("N" | "n", None) => Ok(per_node(topology)),
        ("", None) => even(estimate(topology)),
        ("N" | "n" | "", Some(n)) => {
            let guess = estimate(topology);
            if n > 4 * guess && !cfg.force_partitions {
                tracing::warn!(
                    "cpu_npartitions={n} is much more than the {guess} that this machine's CPUs suggest"
                );
            }
            even(n)
        }
        (pattern, number) => pattern::parse(topology, pattern, number, &even),
    }
}

/// One partition for each NUMA node.
pub(crate) fn per_node(topology: &Topology) -> Vec<Vec<usize>> {
    topology.nodes.iter().map(|n| n.cpus()).collect()
}

/// The number of partitions that suits a machine, as today's Lustre reckons: one up to 4 CPUs; then the least n >= 2 such
/// that n partitions of 2 cores for each would hold all CPUs; then less until it divides their number.
pub fn estimate(topology: &Topology) -> usize {
    let ncpu = topology.cpus().len();
    if ncpu <= 4 {
        return 1;
    }
    let mut ncpt = 2;
    while ncpu > 2 * topology.siblings() * ncpt {
        ncpt += 1;
    }
    dividing(ncpu, ncpt)
}

/// The number of partitions by the published rule: one up to 4 CPUs; then the power of two N with
/// 2(N-1)² < CPUs <= 2N²; then the number of NUMA nodes, halved or doubled until it comes to that; then less until it
/// divides the number of CPUs.
pub fn published(topology: &Topology) -> usize {
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
    dividing(ncpu, ncpt)
}

/// The largest number from `n` down that divides `ncpu`.
fn dividing(ncpu: usize, n: usize) -> usize {
    (1..=n).rev().find(|n| ncpu.is_multiple_of(*n)).unwrap_or(1)
}

/// `n` partitions, filled core by core. More of them than CPUs share those in turn, if that is forced.
fn divide(topology: &Topology, n: usize, force: bool) -> Result<Vec<Vec<usize>>, CptError> {
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
