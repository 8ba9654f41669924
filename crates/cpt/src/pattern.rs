//! `cpu_pattern`: partitions named one by one, `0[0-3] 1[4-7]`, or by NUMA node, `N 0[0] 1[1]` (guide 12.1). Pure.

use crate::list::parse_list;
use crate::{CptError, Topology};

/// The partitions that `pattern` names: for each its CPUs. Every partition is set exactly once, numbered from 0 without
/// gaps, and has at least one CPU that this process may use.
pub(crate) fn parse(topology: &Topology, pattern: &str) -> Result<Vec<Vec<usize>>, CptError> {
    let bad = |why: String| CptError::Pattern {
        pattern: pattern.to_owned(),
        why,
    };
    let (by_node, mut rest) = match pattern.strip_prefix('N') {
        Some(rest) => (true, rest.trim()),
        None => (false, pattern),
    };
    let count = rest.matches('[').count();
    if count == 0 {
        return Err(bad(
            "expected partitions such as 0[0-3] 1[4-7], or N for one per NUMA node".into(),
        ));
    }
    let mut cpts: Vec<Vec<usize>> = vec![Vec::new(); count];
    while !rest.is_empty() {
        let (id, after) = rest
            .split_once('[')
            .ok_or_else(|| bad(format!("expected a partition such as 0[0-3], found '{rest}'")))?;
        let (list, after) = after
            .split_once(']')
            .ok_or_else(|| bad("a '[' without its ']'".into()))?;
        let id: usize = id
            .trim()
            .parse()
            .map_err(|_| bad(format!("'{}' is not the number of a partition", id.trim())))?;
        let cpt = cpts
            .get_mut(id)
            .ok_or_else(|| bad(format!("partition {id}, but only {count} are named")))?;
        if !cpt.is_empty() {
            return Err(bad(format!("partition {id} is set twice")));
        }
        let named = parse_list(list).map_err(bad)?;
        *cpt = topology
            .nodes
            .iter()
            .flat_map(|(node, cpus)| cpus.iter().map(move |cpu| (*node, *cpu)))
            .filter(|(node, cpu)| named.contains(if by_node { node } else { cpu }))
            .map(|(_, cpu)| cpu)
            .collect();
        if cpt.is_empty() {
            return Err(bad(format!(
                "partition {id} has no CPU that this process may use"
            )));
        }
        rest = after.trim();
    }
    let mut all: Vec<usize> = cpts.concat();
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|w| w[0] == w[1]) {
        return Err(bad(format!("CPU {} is in two partitions", twice[0])));
    }
    Ok(cpts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse;
    use crate::Topology;

    fn machine() -> Topology {
        Topology {
            nodes: vec![(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])],
            siblings: 1,
        }
    }

    #[test]
    fn partitions_are_named_by_cpu_or_by_node() {
        assert_eq!(
            parse(&machine(), "0[0-1] 1[2,4-7/2]").unwrap(),
            [vec![0, 1], vec![2, 4, 6]]
        );
        assert_eq!(
            parse(&machine(), "N 1[0] 0[1]").unwrap(),
            [vec![4, 5, 6, 7], vec![0, 1, 2, 3]]
        );
        assert_eq!(parse(&machine(), "0[3-12]").unwrap(), [vec![3, 4, 5, 6, 7]]);
    }

    #[test]
    fn each_partition_is_set_once_without_gaps_and_with_cpus_of_its_own() {
        for pattern in [
            "0[0] 0[1]",
            "1[0]",
            "0[0] 2[1]",
            "0[9]",
            "0[0",
            "x[0]",
            "0[0] 1[0]",
            "0[]",
            "garbage",
            "0[0] tail",
        ] {
            assert!(parse(&machine(), pattern).is_err(), "{pattern}");
        }
    }
}
