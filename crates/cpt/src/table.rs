//! The partitions of this process and their runtimes. A partition's data stays on its workers; what belongs to a peer
//! runs on the partition that the peer's NID names.

use crate::{CptConfig, CptError, Topology, layout};
use std::cell::Cell;
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
        let cpus = Topology::detect().map_or_else(|_| vec![0], |t| t.cpus());
        let cpt = Cpt {
            id: CptId(0),
            cpus,
            handle: Handle::current(),
        };
        Arc::new(CptTable::of(vec![cpt], Vec::new(), 0))
    }

    /// The partitions that `cfg` asks for on this machine, each with its runtime, its workers pinned to its CPUs.
    pub fn build(cfg: &CptConfig) -> Result<Arc<CptTable>, CptError> {
        CptTable::with_layout(layout(&Topology::detect()?, cfg)?)
    }

    fn with_layout(layout: Vec<Vec<usize>>) -> Result<Arc<CptTable>, CptError> {
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
                handle: runtime.handle().clone(),
            });
            runtimes.push(runtime);
        }
        Ok(Arc::new(CptTable::of(cpts, runtimes, tag)))
    }

    fn of(cpts: Vec<Cpt>, runtimes: Vec<Runtime>, tag: u64) -> CptTable {
        CptTable {
            cpts,
            runtimes: Mutex::new(runtimes),
            tag,
            next: AtomicUsize::new(0),
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
    use crate::Topology;

    #[test]
    fn workers_stay_on_their_partitions_cpus() {
        let cpus = Topology::detect().unwrap().cpus();
        let halves = if cpus.len() < 2 {
            vec![cpus]
        } else {
            vec![cpus[..1].to_vec(), cpus[1..].to_vec()]
        };
        let table = CptTable::with_layout(halves.clone()).unwrap();
        for (i, cpus) in halves.iter().enumerate() {
            let at = table.clone();
            let cpt = table.get(CptId(i));
            let task = cpt.spawn(async move { (at.current(), Topology::detect().unwrap().cpus()) });
            assert_eq!(cpt.handle().block_on(task).unwrap(), (CptId(i), cpus.clone()));
        }
        table.shutdown();
    }

    #[test]
    fn a_peer_belongs_to_the_sum_of_its_nids_bytes() {
        let table = CptTable::with_layout(vec![vec![0], vec![0], vec![0]]).unwrap();
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
