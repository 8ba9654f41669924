//! The partitions of this process and their runtimes. A partition's data stays on its workers; what belongs to a peer
//! runs on the partition that the peer's NID names.
//!
//! A partition's memory is on its nodes without being asked for: Linux gives a thread memory of the node on which it first
//! touches it, the workers stay on their CPUs, and the allocator has more arenas than there are workers, each of which
//! keeps what it got. So no memory policy is set here, and one that the process was started with (`numactl`) stays.

use crate::{CptConfig, CptError, Topology, layout};
use std::cell::Cell;
use std::fmt::Write;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// The number of a partition, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CptId(pub usize);

/// One partition: some CPUs and the runtime that works on them.
#[derive(Debug)]
pub struct Cpt {
    id: CptId,
    cpus: Vec<usize>,
    nodes: Vec<usize>,
    /// How far each partition is.
    distances: Vec<u32>,
    handle: Handle,
}

impl Cpt {
    /// Its number.
    pub fn id(&self) -> CptId {
        self.id
    }

    /// Its CPUs.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// The NUMA nodes that they are on.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Runs `future` on this partition.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle.spawn(future)
    }

    /// Its runtime.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// All partitions of this process.
#[derive(Debug)]
pub struct CptTable {
    cpts: Vec<Cpt>,
    /// The runtimes that this table built and stops; none when it runs on its maker's.
    runtimes: Mutex<Vec<Runtime>>,
    /// Tells this table's workers from another table's.
    tag: u64,
    next: AtomicUsize,
    /// How many CPUs share a core.
    siblings: usize,
    /// There is one partition, and it has all CPUs that this process may use: whatever thread runs is on them.
    whole: bool,
}

static TAGS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Which table and partition this thread works for.
    static WORKS_FOR: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

impl CptTable {
    /// One partition, on the runtime that the caller runs on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn single_current() -> Arc<CptTable> {
        let topology = Topology::detect().ok();
        let cpt = Cpt {
            id: CptId(0),
            cpus: topology.as_ref().map_or_else(|| vec![0], Topology::cpus),
            nodes: topology
                .as_ref()
                .map_or_else(|| vec![0], |t| t.nodes.iter().map(|n| n.id).collect()),
            distances: vec![topology.as_ref().map_or(10, |t| t.spread())],
            handle: Handle::current(),
        };
        let siblings = topology.map_or(1, |t| t.siblings());
        Arc::new(CptTable::of(vec![cpt], Vec::new(), 0, siblings, true))
    }

    /// The partitions that `cfg` asks for on this machine, each with its runtime, its workers pinned to its CPUs.
    pub fn build(cfg: &CptConfig) -> Result<Arc<CptTable>, CptError> {
        let topology = Topology::detect()?;
        CptTable::with_layout(&topology, layout(&topology, cfg)?)
    }

    fn with_layout(topology: &Topology, layout: Vec<Vec<usize>>) -> Result<Arc<CptTable>, CptError> {
        let nodes: Vec<Vec<usize>> = layout.iter().map(|cpus| topology.nodes_of(cpus)).collect();
        let whole = layout.len() == 1 && layout[0].len() >= topology.cpus().len();
        let tag = TAGS.fetch_add(1, Ordering::Relaxed);
        let mut cpts = Vec::with_capacity(layout.len());
        let mut runtimes = Vec::with_capacity(layout.len());
        for (i, cpus) in layout.into_iter().enumerate() {
            let pin_to = cpus.clone();
            let runtime = Builder::new_multi_thread()
                .worker_threads(cpus.len().max(1))
                .thread_name(format!("cpt{i}"))
                .enable_all()
                .on_thread_start(move || {
                    WORKS_FOR.set((tag, i));
                    pin(&pin_to);
                })
                .build()
                .map_err(|source| CptError::Runtime { cpt: i, source })?;
            cpts.push(Cpt {
                id: CptId(i),
                cpus,
                nodes: nodes[i].clone(),
                distances: nodes.iter().map(|to| topology.distance(&nodes[i], to)).collect(),
                handle: runtime.handle().clone(),
            });
            runtimes.push(runtime);
        }
        Ok(Arc::new(CptTable::of(
            cpts,
            runtimes,
            tag,
            topology.siblings(),
            whole,
        )))
    }

    fn of(cpts: Vec<Cpt>, runtimes: Vec<Runtime>, tag: u64, siblings: usize, whole: bool) -> CptTable {
        CptTable {
            cpts,
            runtimes: Mutex::new(runtimes),
            tag,
            next: AtomicUsize::new(0),
            siblings,
            whole,
        }
    }

    /// How many partitions there are; at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.cpts.len()
    }

    /// One partition. A number beyond the last is taken modulo their count, so that an id of another table is harmless.
    pub fn get(&self, id: CptId) -> &Cpt {
        &self.cpts[id.0 % self.cpts.len()]
    }

    /// Whether partitions share CPUs, because more were forced than there are: figures then say nothing about partitions.
    pub fn is_forced(&self) -> bool {
        let mut cpus: Vec<usize> = self.cpts.iter().flat_map(|c| c.cpus().iter().copied()).collect();
        let n = cpus.len();
        cpus.sort_unstable();
        cpus.dedup();
        cpus.len() < n
    }

    /// How many CPUs share a core (1 without SMT).
    pub fn siblings(&self) -> usize {
        self.siblings
    }

    /// The first partition that has CPUs on a NUMA node: where an interface of that node belongs.
    pub fn of_node(&self, node: usize) -> Option<CptId> {
        self.cpts.iter().find(|c| c.nodes.contains(&node)).map(|c| c.id)
    }

    /// The CPUs of each partition, as Lustre's `cpu_partition_table` shows them.
    pub fn show(&self) -> String {
        let mut out = String::new();
        for cpt in &self.cpts {
            let mut cpus = cpt.cpus.clone();
            cpus.sort_unstable();
            let cpus: String = cpus.iter().map(|cpu| format!(" {cpu}")).collect();
            let _ = writeln!(out, "{}\t:{cpus}", cpt.id.0);
        }
        out
    }

    /// How far the partitions are from each other, as Lustre's `cpu_partition_distance` shows it.
    pub fn show_distances(&self) -> String {
        let mut out = String::new();
        for cpt in &self.cpts {
            let to: String = cpt
                .distances
                .iter()
                .enumerate()
                .map(|(to, d)| format!(" {to}:{d}"))
                .collect();
            let _ = writeln!(out, "{}\t:{to}", cpt.id.0);
        }
        out
    }

    /// All partitions, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Cpt> {
        self.cpts.iter()
    }

    /// The partition that a peer belongs to: the sum of its NID's eight bytes modulo their count (guide 12.2).
    pub fn of_nid(&self, nid: u64) -> CptId {
        CptId(nid_hash(nid) % self.cpts.len())
    }

    /// The partition that the calling thread works for; for a thread of none, the next in turn.
    pub fn current(&self) -> CptId {
        if self.cpts.len() == 1 {
            return CptId(0);
        }
        match WORKS_FOR.get() {
            (tag, cpt) if tag == self.tag => CptId(cpt),
            _ => CptId(self.next.fetch_add(1, Ordering::Relaxed) % self.cpts.len()),
        }
    }

    /// Whether the calling thread may work for a partition: it is one of its workers, or all CPUs are that partition's.
    pub fn is_here(&self, id: CptId) -> bool {
        self.whole || WORKS_FOR.get() == (self.tag, id.0)
    }

    /// Stops the runtimes that this table built. Tasks are dropped where they wait; blocking calls are not waited for.
    pub fn shutdown(&self) {
        let runtimes = std::mem::take(&mut *self.runtimes.lock().unwrap_or_else(PoisonError::into_inner));
        runtimes.into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for CptTable {
    /// A runtime must not be dropped by a task, where waiting is not allowed: stop it in the background instead.
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What chooses a peer's partition, modulo their number: the sum of its NID's eight bytes (guide 12.2).
pub fn nid_hash(nid: u64) -> usize {
    nid.to_be_bytes().iter().map(|&b| usize::from(b)).sum()
}

/// Keeps the calling thread on `cpus`. Only speed depends on it, so a refusal is no error.
fn pin(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!("cannot pin a worker to CPUs {cpus:?}: {e}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CptConfig, CptId, CptTable};
    use crate::{Node, Topology};

    #[test]
    fn workers_stay_on_their_partitions_cpus() {
        let cpus = Topology::detect().unwrap().cpus();
        let halves = if cpus.len() < 2 {
            vec![cpus]
        } else {
            vec![cpus[..1].to_vec(), cpus[1..].to_vec()]
        };
        let table = CptTable::with_layout(&Topology::detect().unwrap(), halves.clone()).unwrap();
        for (i, cpus) in halves.iter().enumerate() {
            let at = table.clone();
            let cpt = table.get(CptId(i));
            let task = cpt.spawn(async move {
                let others = (0..at.len()).filter(|&other| other != i && at.is_here(CptId(other)));
                assert!(at.is_here(at.current()) && others.count() == 0);
                (at.current(), Topology::detect().unwrap().cpus())
            });
            assert_eq!(cpt.handle().block_on(task).unwrap(), (CptId(i), cpus.clone()));
            assert_eq!(
                table.is_here(CptId(i)),
                halves.len() == 1,
                "of a thread of no partition"
            );
        }
        table.shutdown();
    }

    /// Partitions 0 and 1 on node 0, partition 2 on nodes 0 and 1.
    fn three_on_two_nodes() -> std::sync::Arc<CptTable> {
        let node = |id, cores, distances| Node { id, cores, distances };
        let topology = Topology {
            nodes: vec![
                node(0, vec![vec![0], vec![1], vec![2]], vec![10, 21]),
                node(1, vec![vec![3]], vec![21, 10]),
            ],
        };
        CptTable::with_layout(&topology, vec![vec![0], vec![1], vec![3, 2]]).unwrap()
    }

    #[test]
    fn the_table_and_the_distances_are_shown_as_lustre_shows_them() {
        let table = three_on_two_nodes();
        assert_eq!(table.show(), "0\t: 0\n1\t: 1\n2\t: 2 3\n");
        assert_eq!(
            table.show_distances(),
            "0\t: 0:10 1:10 2:21\n1\t: 0:10 1:10 2:21\n2\t: 0:21 1:21 2:21\n"
        );
        assert_eq!(
            (table.of_node(0), table.of_node(1)),
            (Some(CptId(0)), Some(CptId(2)))
        );
    }

    #[test]
    fn a_peer_belongs_to_the_sum_of_its_nids_bytes() {
        let table = three_on_two_nodes();
        let nid = 0x0002_0000_c0a8_0102_u64;
        assert_eq!(table.of_nid(nid), CptId((2 + 0xc0 + 0xa8 + 1 + 2) % 3));
    }

    #[tokio::test]
    async fn a_table_on_the_current_runtime_has_one_partition() {
        let table = CptTable::single_current();
        assert_eq!((table.len(), table.current()), (1, CptId(0)));
        assert_eq!(table.get(CptId(7)).spawn(async { 5 }).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn a_table_may_be_dropped_by_a_task() {
        drop(
            CptTable::build(&CptConfig {
                cpu_npartitions: 1,
                ..CptConfig::default()
            })
            .unwrap(),
        );
    }
}
