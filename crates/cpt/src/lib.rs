//! CPU partitions (CPTs): the machine's topology, the rules and patterns that divide its CPUs, and
//! one runtime per partition with workers pinned to the partition's CPUs. Also the amount of memory
//! that the process may use, wrappers that start a future in one place and finish it as a task, and
//! the hash function of tables.
//!
//! Follows docs/protocol.md, "LNet" (partitions): `cpu_npartitions`, `cpu_pattern`, and the
//! partition of a NID. Only CPUs in the process's affinity mask count as online.

mod detach_on_drop;
mod hash;
mod layout;
mod list;
mod memory;
#[cfg(feature = "sim")]
mod node_scope;
mod pattern;
mod planted;
mod poll_then_spawn;
mod table;
mod task;
mod topology;

use std::{future::Future, pin::Pin};

pub use detach_on_drop::{DetachOnDrop, detach_on_drop};
pub use hash::{HashMap, HashSeed, HashSet, HashState, SeededMap, SeededSet};
pub use layout::{CptConfig, estimate, layout, published_count};
pub use list::parse_list;
pub use memory::memory_bytes;
#[cfg(feature = "sim")]
pub use node_scope::{InScope, NodeScope};
pub use planted::Bug;
#[cfg(feature = "sim")]
pub use planted::plant;
pub use poll_then_spawn::poll_then_spawn;
pub use table::{Cpt, CptId, CptTable, nid_hash};
pub use task::{Handle, JoinSet, now, spawn, spawn_blocking};
pub use topology::{Node, Topology};

/// A boxed future, for asynchronous methods of traits used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An error in the setup of partitions.
#[derive(Debug, thiserror::Error)]
pub enum CptError {
    /// `cpu_npartitions` exceeds the number of CPUs.
    #[error(
        "cpu_npartitions={wanted}, but this process may use only {online} CPUs: set it to at most {online}, or pass --force-partitions to share CPUs (for tests: it makes nothing faster)"
    )]
    TooManyPartitions {
        /// The requested number of partitions.
        wanted: usize,
        /// The number of CPUs that this process may use.
        online: usize,
    },
    /// `cpu_pattern` is invalid.
    #[error("cpu_pattern '{pattern}': {why}")]
    Pattern {
        /// The whole pattern.
        pattern: String,
        /// The mistake.
        why: String,
    },
    /// The kernel's description of the CPUs is missing or malformed.
    #[error("cannot read the CPU topology: {0}")]
    Topology(String),
    /// The runtime of a partition did not start.
    #[error("cannot start the runtime of CPU partition {cpt}: {source}")]
    Runtime {
        /// The partition.
        cpt: usize,
        /// The system's error.
        source: std::io::Error,
    },
}
