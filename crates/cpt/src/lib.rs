//! CPU partitions (CPTs): the machine's topology, the rules and patterns that divide its CPUs, and one runtime per
//! partition whose workers stay on that partition's CPUs.
//!
//! Follows guide 12.1 (`cpu_npartitions`, `cpu_pattern`) and 12.2 (which partition a NID belongs to). Only CPUs that the
//! process may run on count as online. And how much memory the process may use.

mod here;
mod layout;
mod list;
mod memory;
mod pattern;
mod table;
mod to_its_end;
mod topology;

use std::{future::Future, pin::Pin};

pub use here::begin_here;
pub use layout::{CptConfig, estimate, layout, published};
pub use list::parse_list;
pub use memory::memory_bytes;
pub use table::{Cpt, CptId, CptTable, nid_hash};
pub use to_its_end::{ToItsEnd, to_its_end};
pub use topology::{Node, Topology};

/// A boxed future, for asynchronous methods of traits that are used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why partitions could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CptError {
    /// `cpu_npartitions` asks for more partitions than there are CPUs.
    #[error(
        "cpu_npartitions={wanted}, but this process may use only {online} CPUs: ask for at most {online}, or let them share CPUs with --force-partitions (for tests: it makes nothing faster)"
    )]
    TooManyPartitions {
        /// What was asked for.
        wanted: usize,
        /// How many CPUs there are.
        online: usize,
    },
    /// `cpu_pattern` does not say what it has to.
    #[error("cpu_pattern '{pattern}': {why}")]
    Pattern {
        /// The whole pattern.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel did not tell, or not in a way that we understand, which CPUs there are.
    #[error("cannot learn the CPU topology: {0}")]
    Topology(String),
    /// A partition's runtime did not start.
    #[error("cannot start the runtime of CPU partition {cpt}: {source}")]
    Runtime {
        /// The partition.
        cpt: usize,
        /// What the system said.
        source: std::io::Error,
    },
}
