//! How CPUs are divided into partitions when no pattern names them one by one (guide 12.1). Pure.

use crate::{CptError, Topology, pattern};

/// What the administrator may say about partitions.
#[derive(Debug, Clone, Default)]
pub struct CptConfig {
    /// How many partitions; 0 leaves it to the pattern or the estimate.
    pub cpu_npartitions: usize,
    /// `None`: one partition per NUMA node, unless `cpu_npartitions` is given. Empty: the estimate. Else a pattern.
    pub cpu_pattern: Option<String>,
    /// Lets partitions share CPUs where `cpu_npartitions` is larger than their number: for tests of what partitions do
    /// on a small machine. It makes nothing faster.
    pub force_partitions: bool,
}

/// Divides the CPUs of `topology` as `cfg` says: for each partition its CPUs.
pub fn layout(topology: &Topology, cfg: &CptConfig) -> Result<Vec<Vec<usize>>, CptError> {
    let per_node = || topology.nodes.iter().map(|(_, cpus)| cpus.clone()).collect();
    match (cfg.cpu_pattern.as_deref().map(str::trim), cfg.cpu_npartitions) {
        (Some(pattern), _) if !pattern.is_empty() => match pattern {
            "N" => Ok(per_node()),
            _ => pattern::parse(topology, pattern),
        },
        (None, 0) => Ok(per_node()),
        (_, 0) => divide(topology, estimate(topology), false),
        (_, wanted) => {
            let guess = estimate(topology);
            if wanted > 4 * guess {
                tracing::warn!(
                    "cpu_npartitions={wanted} is much more than the {guess} that this machine's CPUs suggest"
                );
            }
            divide(topology, wanted, cfg.force_partitions)
        }
    }
}

/// The number of partitions that suits a machine: one up to 4 CPUs; then the least n >= 2 such that n partitions of
/// 2n cores each would hold all CPUs; then less until it divides their number.
pub fn estimate(topology: &Topology) -> usize {
    let ncpu = topology.cpus().len();
    if ncpu <= 4 {
        return 1;
    }
    let mut ncpt = 2;
    while ncpu > 2 * topology.siblings * ncpt {
        ncpt += 1;
    }
    while !ncpu.is_multiple_of(ncpt) {
        ncpt -= 1;
    }
    ncpt
}

/// `n` partitions, filled node by node, whose sizes differ by at most one. More of them than CPUs share those in turn, if
/// that is forced.
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
    let (size, larger) = (cpus.len() / n, cpus.len() % n);
    let mut rest = cpus.into_iter();
    Ok((0..n)
        .map(|i| rest.by_ref().take(size + usize::from(i < larger)).collect())
        .collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CptConfig, estimate, layout};
    use crate::Topology;

    fn machine(nodes: usize, per_node: usize, siblings: usize) -> Topology {
        let cpus = |n: usize| (n * per_node..(n + 1) * per_node).collect();
        Topology {
            nodes: (0..nodes).map(|n| (n, cpus(n))).collect(),
            siblings,
        }
    }

    #[test]
    fn by_default_each_numa_node_is_a_partition() {
        let cpts = layout(&machine(2, 4, 1), &CptConfig::default()).unwrap();
        assert_eq!(cpts, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
    }

    #[test]
    fn a_number_of_partitions_divides_evenly() {
        let cfg = CptConfig {
            cpu_npartitions: 3,
            ..CptConfig::default()
        };
        assert_eq!(
            layout(&machine(2, 4, 1), &cfg).unwrap(),
            [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]
        );
    }

    #[test]
    fn more_partitions_than_cpus_are_refused() {
        let cfg = CptConfig {
            cpu_npartitions: 3,
            ..CptConfig::default()
        };
        assert!(layout(&machine(1, 2, 1), &cfg).is_err());
    }

    #[test]
    fn forced_partitions_share_cpus_in_turn() {
        let cfg = CptConfig {
            cpu_npartitions: 3,
            force_partitions: true,
            ..CptConfig::default()
        };
        assert_eq!(
            layout(&machine(1, 2, 1), &cfg).unwrap(),
            [vec![0], vec![1], vec![0]]
        );
    }

    #[test]
    fn the_estimate_is_one_on_small_machines_and_divides_the_cpus() {
        assert_eq!(estimate(&machine(1, 4, 2)), 1);
        assert_eq!(estimate(&machine(1, 8, 1)), 4);
        assert_eq!(estimate(&machine(1, 8, 2)), 2);
        assert_eq!(estimate(&machine(2, 7, 1)), 7);
        let empty = CptConfig {
            cpu_npartitions: 0,
            cpu_pattern: Some(String::new()),
            ..CptConfig::default()
        };
        assert_eq!(layout(&machine(1, 8, 2), &empty).unwrap().len(), 2);
    }
}
