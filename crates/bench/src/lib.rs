//! Loads that measure a file system, and the tables that say what came out; and one that tries it.
//!
//! [`mdtest`](mod@mdtest) and [`mdsrate`](mod@mdsrate) are tools of this field, with their options and their output: several
//! tasks (threads, processes of `mpirun`, clients of their own) do the same operations at once. So is
//! [`survey`](mod@survey), which measures what one metadata target can do without network and requests.
//!
//! [`compare`](mod@compare) runs the same load on several subjects in turn (a bare disk, a pass-through FUSE file system, a
//! mount, the client library), several times over, so that what disturbs the machine disturbs them all, and
//! reports medians with their spread. [`fsx`](mod@fsx) does random operations on one file through several mounts and compares it with
//! memory. [`lnet`](mod@lnet) measures the network alone. [`demo`](mod@demo) puts these loads together into the published
//! demonstrations.

pub mod compare;
mod course;
mod cpu;
pub mod demo;
mod figure;
pub mod fsx;
mod hub;
pub mod lnet;
mod load;
pub mod mdsrate;
pub mod mdtest;
mod memory;
mod report;
pub mod shrink;
mod subject;
pub mod survey;
mod task;
mod team;

pub use compare::{Config, PASS_THROUGH, compare};
pub use course::{Window, windows};
pub use cpu::settle;
pub use figure::{Figure, Quantiles, csv, json};
pub use hub::World;
pub use load::Phase;
pub use memory::resident_bytes;
pub use report::{Report, Row, Summary};
pub use subject::{LibrarySubject, NewFile, PathSubject, StackSubject, Subject};
pub use task::{Task, Watch};
pub use team::Team;

/// The number of an error that an operation may meet without failing.
pub(crate) const ENOENT: i32 = wire::Errno::ENOENT.0;
/// The same.
pub(crate) const EEXIST: i32 = wire::Errno::EEXIST.0;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An operation of the load failed.
    #[error("{subject}: {operation} of {what} failed: {why}")]
    Operation {
        /// On what.
        subject: String,
        /// Which operation.
        operation: &'static str,
        /// File.
        what: String,
        /// Error.
        why: String,
        /// Its number; 0: it has none.
        errno: i32,
    },
    /// What was asked for cannot be done.
    #[error("{0}")]
    Options(String),
    /// The processes of a job do not find each other.
    #[error("the tasks cannot meet at {place}: {why}")]
    Meeting {
        /// The file that says where.
        place: String,
        /// Why.
        why: String,
    },
    /// Another task ended before this one.
    #[error("another task has ended: it says why")]
    Apart,
    /// The network, or what runs over it, failed.
    #[error("{what}: {why}")]
    Network {
        /// What was being done.
        what: String,
        /// Error.
        why: String,
    },
    /// What a demonstration needs could not be started.
    #[error("{what}: {why}")]
    Stage {
        /// What.
        what: String,
        /// Why not.
        why: String,
    },
    /// The program was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Whether an operation failed with this error number.
    pub(crate) fn is(&self, number: i32) -> bool {
        matches!(self, BenchError::Operation { errno, .. } if *errno == number)
    }
}
