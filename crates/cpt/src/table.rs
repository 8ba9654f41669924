//! The partitions of this process and their runtimes. The workers of a partition run its tasks; the
//! state of a peer belongs to the partition that the peer's NID selects.
//!
//! This module sets no memory policy, and a policy from outside (`numactl`) stays in force. Memory
//! is local to a partition's nodes anyway: Linux allocates it on the node of the thread that first
//! touches it, workers are pinned, and the allocator has more arenas than there are workers.

use crate::{CptConfig, CptError, Handle, Topology, layout};
use std::cell::Cell;
use std::fmt::Write;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// The number of a partition, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CptId(pub usize);

/// One partition: its CPUs and the runtime that runs on them.
#[derive(Debug)]
pub struct Cpt {
    id: CptId,
    cpus: Vec<usize>,
    nodes: Vec<usize>,
    /// NUMA distance to each partition (10: the same node), indexed by partition number.
    distances: Vec<u32>,
    handle: Handle,
}

impl Cpt {
    /// The partition's number.
    pub fn id(&self) -> CptId {
        self.id
    }

    /// The numbers of the partition's CPUs.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// The NUMA nodes of the partition's CPUs.
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

    /// The partition's runtime.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// All partitions of this process.
#[derive(Debug)]
pub struct CptTable {
    cpts: Vec<Cpt>,
    /// The runtimes that this table built and must stop; empty if the table uses its creator's
    /// runtime.
    runtimes: Mutex<Vec<Runtime>>,
    /// Distinguishes this table's workers from the workers of another table; 0 if the table has no
    /// workers of its own.
    tag: u64,
    /// Number of calls of [`CptTable::current`] by threads that belong to no partition of this
    /// table. Not counted if there is only one partition.
    outside_calls: AtomicUsize,
    /// Number of CPUs of the machine's first core (1 without SMT).
    siblings: usize,
    /// The table has one partition, with all CPUs of the process: every thread runs on it.
    has_all_cpus: bool,
}

/// The next table's tag.
static NEXT_TAG: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The tag of the table and the number of the partition that this thread works for; tag 0 for
    /// none.
    static THREAD_PARTITION: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

impl CptTable {
    /// A table with one partition, on the runtime of the caller.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn single_current() -> Arc<CptTable> {
        let topology = Topology::detect().ok();
        let cpt = Cpt {
            id: CptId(0),
            cpus: topology.as_ref().map_or_else(|| vec![0], Topology::cpus),
            nodes: topology
                .as_ref()
                .map_or_else(|| vec![0], |t| t.nodes.iter().map(|n| n.id).collect()),
            distances: vec![topology.as_ref().map_or(10, |t| t.largest_distance())],
            handle: Handle::current(),
        };
        let siblings = topology.map_or(1, |t| t.siblings());
        Arc::new(CptTable::new(vec![cpt], Vec::new(), 0, siblings, true))
    }

    /// A table with `count` partitions, all on the runtime of the caller: the partitions of a node
    /// in a simulation, which has one thread. The thread belongs to none of them.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "sim")]
    pub fn simulated(count: usize) -> Arc<CptTable> {
        let cpt = |id| Cpt {
            id: CptId(id),
            cpus: vec![id],
            nodes: vec![0],
            distances: vec![10; count],
            handle: Handle::current(),
        };
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        Arc::new(CptTable::new(
            (0..count).map(cpt).collect(),
            Vec::new(),
            tag,
            1,
            false,
        ))
    }

    /// The partitions that `cfg` describes on this machine, each with a runtime of workers pinned
    /// to its CPUs.
    ///
    /// # Errors
    ///
    /// The topology cannot be read, `cfg` does not fit it, or a runtime does not start.
    pub fn build(cfg: &CptConfig) -> Result<Arc<CptTable>, CptError> {
        let topology = Topology::detect()?;
        CptTable::with_layout(&topology, layout(&topology, cfg)?)
    }

    fn with_layout(topology: &Topology, layout: Vec<Vec<usize>>) -> Result<Arc<CptTable>, CptError> {
        let nodes: Vec<Vec<usize>> = layout.iter().map(|cpus| topology.nodes_of(cpus)).collect();
        let has_all_cpus = layout.len() == 1 && layout[0].len() >= topology.cpus().len();
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        let mut cpts = Vec::with_capacity(layout.len());
        let mut runtimes = Vec::with_capacity(layout.len());
        for (i, cpus) in layout.into_iter().enumerate() {
            let pin_to = cpus.clone();
            let runtime = Builder::new_multi_thread()
                .worker_threads(cpus.len().max(1))
                .thread_name(format!("cpt{i}"))
                .enable_all()
                .on_thread_start(move || {
                    THREAD_PARTITION.set((tag, i));
                    pin(&pin_to);
                })
                .build()
                .map_err(|source| CptError::Runtime { cpt: i, source })?;
            cpts.push(Cpt {
                id: CptId(i),
                cpus,
                nodes: nodes[i].clone(),
                distances: nodes.iter().map(|to| topology.distance(&nodes[i], to)).collect(),
                handle: runtime.handle().clone().into(),
            });
            runtimes.push(runtime);
        }
        Ok(Arc::new(CptTable::new(
            cpts,
            runtimes,
            tag,
            topology.siblings(),
            has_all_cpus,
        )))
    }

    fn new(
        cpts: Vec<Cpt>,
        runtimes: Vec<Runtime>,
        tag: u64,
        siblings: usize,
        has_all_cpus: bool,
    ) -> CptTable {
        CptTable {
            cpts,
            runtimes: Mutex::new(runtimes),
            tag,
            outside_calls: AtomicUsize::new(0),
            siblings,
            has_all_cpus,
        }
    }

    /// The number of partitions, at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.cpts.len()
    }

    /// One partition. A number beyond the last wraps around, so an id from another table is
    /// harmless.
    pub fn get(&self, id: CptId) -> &Cpt {
        &self.cpts[id.0 % self.cpts.len()]
    }

    /// Whether partitions share CPUs (`force_partitions`): measurements of partitions are then
    /// meaningless.
    pub fn shares_cpus(&self) -> bool {
        let mut cpus: Vec<usize> = self.cpts.iter().flat_map(|c| c.cpus().iter().copied()).collect();
        let n = cpus.len();
        cpus.sort_unstable();
        cpus.dedup();
        cpus.len() < n
    }

    /// Number of CPUs of the machine's first core (1 without SMT).
    pub fn siblings(&self) -> usize {
        self.siblings
    }

    /// The first partition with CPUs on a NUMA node. Network devices of the node belong to this
    /// partition.
    pub fn of_node(&self, node: usize) -> Option<CptId> {
        self.cpts.iter().find(|c| c.nodes.contains(&node)).map(|c| c.id)
    }

    /// The CPUs of each partition, in the format of Lustre's `cpu_partition_table`.
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

    /// The distances between partitions, in the format of Lustre's `cpu_partition_distance`.
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

    /// The partition of a peer: the sum of the eight bytes of its NID modulo the number of
    /// partitions (docs/protocol.md, "LNet").
    pub fn of_nid(&self, nid: u64) -> CptId {
        CptId(nid_hash(nid) % self.cpts.len())
    }

    /// The partition that the calling thread works for. Calls by other threads get the partitions
    /// in turn.
    pub fn current(&self) -> CptId {
        if self.cpts.len() == 1 {
            return CptId(0);
        }
        match THREAD_PARTITION.get() {
            (tag, cpt) if tag == self.tag => CptId(cpt),
            _ => CptId(self.outside_calls.fetch_add(1, Ordering::Relaxed) % self.cpts.len()),
        }
    }

    /// Whether the calling thread may run work of the partition `id`: the thread is one of the
    /// partition's workers, or the table has a single partition with all CPUs.
    pub fn may_run_here(&self, id: CptId) -> bool {
        self.has_all_cpus || THREAD_PARTITION.get() == (self.tag, id.0)
    }

    /// Stops the runtimes that this table built. Drops waiting tasks, and does not wait for
    /// blocking calls.
    pub fn shutdown(&self) {
        let runtimes = std::mem::take(&mut *self.runtimes.lock().unwrap_or_else(PoisonError::into_inner));
        runtimes.into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for CptTable {
    /// Stops the runtimes without waiting: a task must not wait for the end of its own runtime.
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The sum of the eight bytes of a NID. Modulo the number of partitions it selects the peer's
/// partition (docs/protocol.md, "LNet").
pub fn nid_hash(nid: u64) -> usize {
    nid.to_be_bytes().iter().map(|&b| usize::from(b)).sum()
}

/// Pins the calling thread to `cpus`. A failure only costs speed and is not an error.
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
            let task_table = table.clone();
            let cpt = table.get(CptId(i));
            let task = cpt.spawn(async move {
                let others = (0..task_table.len()).filter(|&n| n != i && task_table.may_run_here(CptId(n)));
                assert!(task_table.may_run_here(task_table.current()) && others.count() == 0);
                (task_table.current(), Topology::detect().unwrap().cpus())
            });
            assert_eq!(
                cpt.handle().tokio().block_on(task).unwrap(),
                (CptId(i), cpus.clone())
            );
            assert_eq!(
                table.may_run_here(CptId(i)),
                halves.len() == 1,
                "for a thread of no partition"
            );
        }
        table.shutdown();
    }

    /// Partitions 0 and 1 on node 0, partition 2 on nodes 0 and 1.
    fn three_partitions_on_two_nodes() -> std::sync::Arc<CptTable> {
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
    fn table_and_distances_have_the_format_of_lustre() {
        let table = three_partitions_on_two_nodes();
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
    fn the_sum_of_a_nids_bytes_selects_its_partition() {
        let table = three_partitions_on_two_nodes();
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
