//! Which CPUs this process may use, on which NUMA nodes they are, and how many share a core. Read once from sysfs.

use crate::CptError;
use crate::list::parse_list;
use std::fs;
use std::path::Path;

/// The CPUs of this machine that this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// CPU ids of each NUMA node that has some, node by node: (node id, its CPUs ascending).
    pub nodes: Vec<(usize, Vec<usize>)>,
    /// How many CPUs share a core (1 without SMT).
    pub siblings: usize,
}

impl Topology {
    /// What the kernel says, limited by the affinity mask of this process.
    pub fn detect() -> Result<Topology, CptError> {
        let mask = rustix::thread::sched_getaffinity(None)
            .map_err(|e| CptError::Topology(format!("sched_getaffinity: {e}")))?;
        Topology::from_sysfs(Path::new("/sys/devices/system"), |cpu| {
            cpu < rustix::thread::CpuSet::MAX_CPU && mask.is_set(cpu)
        })
    }

    /// The topology under `root` (`/sys/devices/system`), of the CPUs that `allowed` lets pass.
    /// A machine without NUMA information is one node.
    pub fn from_sysfs(root: &Path, allowed: impl Fn(usize) -> bool) -> Result<Topology, CptError> {
        let read = |path: &str| -> Result<Vec<usize>, CptError> {
            let path = root.join(path);
            let text = fs::read_to_string(&path)
                .map_err(|e| CptError::Topology(format!("{}: {e}", path.display())))?;
            parse_list(&text).map_err(|e| CptError::Topology(format!("{}: {e}", path.display())))
        };
        let online: Vec<usize> = read("cpu/online")?
            .into_iter()
            .filter(|&cpu| allowed(cpu))
            .collect();
        let Some(&first) = online.first() else {
            return Err(CptError::Topology(
                "no CPU is both online and allowed to this process".into(),
            ));
        };
        let mut nodes = Vec::new();
        for node in read("node/online").unwrap_or_default() {
            let cpus: Vec<usize> = read(&format!("node/node{node}/cpulist"))?;
            let cpus: Vec<usize> = cpus.into_iter().filter(|cpu| online.contains(cpu)).collect();
            if !cpus.is_empty() {
                nodes.push((node, cpus));
            }
        }
        if nodes.iter().map(|(_, cpus)| cpus.len()).sum::<usize>() != online.len() {
            nodes = vec![(0, online)];
        }
        let siblings =
            read(&format!("cpu/cpu{first}/topology/thread_siblings_list")).map_or(1, |s| s.len().max(1));
        Ok(Topology { nodes, siblings })
    }

    /// All CPUs, node by node.
    pub fn cpus(&self) -> Vec<usize> {
        self.nodes
            .iter()
            .flat_map(|(_, cpus)| cpus.iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Topology;
    use std::fs;
    use std::path::Path;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn only_allowed_cpus_count_and_nodes_without_any_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "cpu/online", "0-7\n");
        put(dir.path(), "node/online", "0-1\n");
        put(dir.path(), "node/node0/cpulist", "0-3\n");
        put(dir.path(), "node/node1/cpulist", "4-7\n");
        put(dir.path(), "cpu/cpu4/topology/thread_siblings_list", "4-5\n");
        let topology = Topology::from_sysfs(dir.path(), |cpu| cpu >= 4).unwrap();
        assert_eq!(
            topology,
            Topology {
                nodes: vec![(1, vec![4, 5, 6, 7])],
                siblings: 2
            }
        );
    }

    #[test]
    fn a_machine_without_numa_is_one_node() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "cpu/online", "0-1\n");
        let topology = Topology::from_sysfs(dir.path(), |_| true).unwrap();
        assert_eq!(
            topology,
            Topology {
                nodes: vec![(0, vec![0, 1])],
                siblings: 1
            }
        );
    }

    #[test]
    fn this_machine_has_a_topology() {
        assert!(!Topology::detect().unwrap().cpus().is_empty());
    }
}
