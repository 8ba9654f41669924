//! The CPUs that this process may use, their cores and NUMA nodes, and the distances between nodes,
//! read from sysfs. CPUs outside of the process's cpuset or affinity mask do not count.

use crate::CptError;
use crate::list::parse_list;
use std::fs;
use std::path::Path;

/// Distance of a node to itself if the system reports none.
const LOCAL_DISTANCE: u32 = 10;
/// Distance to another node if the system reports none.
const REMOTE_DISTANCE: u32 = 20;

/// A NUMA node with CPUs that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's number.
    pub id: usize,
    /// The cores, socket by socket. Each core is the list of its CPUs (SMT siblings); the numbers
    /// need not be consecutive.
    pub cores: Vec<Vec<usize>>,
    /// Distance to each node, indexed by node number; may lack nodes.
    pub distances: Vec<u32>,
}

impl Node {
    /// The node's CPUs, ascending.
    pub fn cpus(&self) -> Vec<usize> {
        let mut cpus = self.cores.concat();
        cpus.sort_unstable();
        cpus
    }
}

/// The CPUs of this machine that this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The NUMA nodes with such CPUs, in ascending order.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Reads the kernel's description, limited to the affinity mask of the calling thread. The
    /// kernel limits the mask to the cpuset.
    ///
    /// # Errors
    ///
    /// The affinity mask or sysfs cannot be read.
    pub fn detect() -> Result<Topology, CptError> {
        let mask = rustix::thread::sched_getaffinity(None)
            .map_err(|e| CptError::Topology(format!("sched_getaffinity: {e}")))?;
        Topology::from_sysfs(Path::new("/sys/devices/system"), |cpu| {
            cpu < rustix::thread::CpuSet::MAX_CPU && mask.is_set(cpu)
        })
    }

    /// The topology under `root` (`/sys/devices/system`), limited to CPUs for which `allowed` is
    /// true. If the nodes do not list all these CPUs, the machine counts as one node. A CPU without
    /// listed siblings is a core.
    ///
    /// # Errors
    ///
    /// The list of online CPUs or of a node's CPUs is missing or malformed, or no CPU is both
    /// online and allowed.
    pub fn from_sysfs(root: &Path, allowed: impl Fn(usize) -> bool) -> Result<Topology, CptError> {
        let sysfs = Sysfs(root);
        let mut online = sysfs.list("cpu/online")?;
        online.retain(|&cpu| allowed(cpu));
        if online.is_empty() {
            return Err(CptError::Topology(
                "no CPU is both online and allowed to this process".into(),
            ));
        }
        let mut nodes = Vec::new();
        let node_ids = sysfs.list("node/online").unwrap_or_default();
        for &id in &node_ids {
            let mut cpus = sysfs.list(&format!("node/node{id}/cpulist"))?;
            cpus.retain(|cpu| online.contains(cpu));
            if !cpus.is_empty() {
                let cores = sysfs.cores(&cpus);
                let distances = sysfs.distances(id, &node_ids);
                nodes.push(Node { id, cores, distances });
            }
        }
        let listed: usize = nodes.iter().map(|n| n.cpus().len()).sum();
        if listed != online.len() {
            let (id, cores) = (0, sysfs.cores(&online));
            nodes = vec![Node {
                id,
                cores,
                distances: vec![LOCAL_DISTANCE],
            }];
        }
        Ok(Topology { nodes })
    }

    /// All cores, node by node and socket by socket.
    pub fn cores(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.nodes.iter().flat_map(|n| &n.cores)
    }

    /// All CPUs, core by core.
    pub fn cpus(&self) -> Vec<usize> {
        self.cores().flatten().copied().collect()
    }

    /// Number of CPUs of the first core (1 without SMT).
    pub fn siblings(&self) -> usize {
        self.cores().next().map_or(1, Vec::len)
    }

    /// The nodes of these CPUs, ascending.
    pub(crate) fn nodes_of(&self, cpus: &[usize]) -> Vec<usize> {
        let has_cpu = |n: &&Node| n.cores.iter().flatten().any(|cpu| cpus.contains(cpu));
        self.nodes.iter().filter(has_cpu).map(|n| n.id).collect()
    }

    /// The largest distance between two nodes, or of a node to itself.
    pub(crate) fn largest_distance(&self) -> u32 {
        let ids: Vec<usize> = self.nodes.iter().map(|n| n.id).collect();
        self.distance(&ids, &ids)
    }

    /// The largest distance between a node of `from` and a node of `to`.
    pub(crate) fn distance(&self, from: &[usize], to: &[usize]) -> u32 {
        let nodes = self.nodes.iter().filter(|n| from.contains(&n.id));
        let node_distance = |n: &Node, to: usize| {
            let unknown = if n.id == to {
                LOCAL_DISTANCE
            } else {
                REMOTE_DISTANCE
            };
            n.distances.get(to).copied().unwrap_or(unknown)
        };
        let distances = nodes.flat_map(|n| to.iter().map(move |&to| node_distance(n, to)));
        distances.max().unwrap_or(LOCAL_DISTANCE)
    }
}

/// The files below `/sys/devices/system`.
struct Sysfs<'a>(&'a Path);

impl Sysfs<'_> {
    fn read(&self, path: &str) -> Result<String, CptError> {
        let path = self.0.join(path);
        fs::read_to_string(&path).map_err(|e| CptError::Topology(format!("{}: {e}", path.display())))
    }

    fn list(&self, path: &str) -> Result<Vec<usize>, CptError> {
        let text = self.read(path)?;
        parse_list(&text).map_err(|e| CptError::Topology(format!("{}: {e}", self.0.join(path).display())))
    }

    /// The cores of a node's CPUs, ordered by socket and then by first CPU.
    fn cores(&self, cpus: &[usize]) -> Vec<Vec<usize>> {
        let mut cores: Vec<(usize, Vec<usize>)> = Vec::new();
        for &cpu in cpus {
            if cores.iter().any(|(_, core)| core.contains(&cpu)) {
                continue;
            }
            let topology = |file| format!("cpu/cpu{cpu}/topology/{file}");
            let socket = self.read(&topology("physical_package_id"));
            let socket = socket.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0);
            let mut core = self.list(&topology("thread_siblings_list")).unwrap_or_default();
            core.retain(|sibling| cpus.contains(sibling));
            if !core.contains(&cpu) {
                core = vec![cpu];
            }
            cores.push((socket, core));
        }
        cores.sort_by_key(|(socket, _)| *socket);
        cores.into_iter().map(|(_, core)| core).collect()
    }

    /// The distances of a node, indexed by node number; empty if the system reports none. The file
    /// lists only the nodes that are online.
    fn distances(&self, node: usize, online: &[usize]) -> Vec<u32> {
        let text = self
            .read(&format!("node/node{node}/distance"))
            .unwrap_or_default();
        let listed = text.split_whitespace().map_while(|d| d.parse().ok());
        let mut distances = Vec::new();
        for (&id, distance) in online.iter().zip(listed) {
            distances.resize(id, REMOTE_DISTANCE);
            distances.push(distance);
        }
        distances
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
    fn forbidden_cpus_and_nodes_without_cpus_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "cpu/online", "0-7\n");
        put(dir.path(), "node/online", "0-1\n");
        put(dir.path(), "node/node0/cpulist", "0-3\n");
        put(dir.path(), "node/node1/cpulist", "4-7\n");
        put(dir.path(), "node/node1/distance", "21 10\n");
        put(dir.path(), "cpu/cpu5/topology/thread_siblings_list", "5,7\n");
        let topology = Topology::from_sysfs(dir.path(), |cpu| cpu >= 5).unwrap();
        let node = &topology.nodes[0];
        assert_eq!((topology.nodes.len(), node.id), (1, 1));
        assert_eq!(node.cores, [vec![5, 7], vec![6]]);
        assert_eq!(
            (node.cpus(), node.distances.clone()),
            (vec![5, 6, 7], vec![21, 10])
        );
    }

    #[test]
    fn distances_belong_to_online_nodes() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "cpu/online", "0-1\n");
        put(dir.path(), "node/online", "0,2\n");
        put(dir.path(), "node/node0/cpulist", "0\n");
        put(dir.path(), "node/node2/cpulist", "1\n");
        put(dir.path(), "node/node0/distance", "10 31\n");
        put(dir.path(), "node/node2/distance", "31 10\n");
        let topology = Topology::from_sysfs(dir.path(), |_| true).unwrap();
        assert_eq!(topology.distance(&[0], &[2]), 31);
        assert_eq!(topology.distance(&[2], &[0]), 31);
        assert_eq!(topology.distance(&[2], &[2]), 10);
    }

    #[test]
    fn a_machine_without_numa_is_one_node() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "cpu/online", "0-1\n");
        let topology = Topology::from_sysfs(dir.path(), |_| true).unwrap();
        assert_eq!((topology.cpus(), topology.siblings()), (vec![0, 1], 1));
        assert_eq!(topology.distance(&[0], &[0]), 10);
    }

    #[test]
    fn this_machine_has_a_topology() {
        assert!(!Topology::detect().unwrap().cpus().is_empty());
    }
}
