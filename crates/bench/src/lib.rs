//! Benchmarks and a correctness test of file systems.
//!
//! [`mdtest`](mod@mdtest) and [`mdsrate`](mod@mdsrate) reimplement the tools of these names with
//! their options and output: several tasks (threads of one process, or of the processes that
//! `mpirun` starts) execute the same operations in parallel. [`survey`](mod@survey) reimplements
//! mds-survey, which measures a metadata target without network or requests.
//!
//! [`compare`](mod@compare) runs the same loads repeatedly on several subjects in turn (a local
//! disk, a pass-through FUSE file system, a mount, the client library), so that disturbances affect
//! all alike, and reports medians with their range. [`fsx`](mod@fsx) tests random operations on one
//! file through several mounts against a copy in memory. [`lnet`](mod@lnet) measures only the
//! network. [`demo`](mod@demo) repeats published demonstrations with mdtest and LNet selftest.

mod communicator;
pub mod compare;
mod cpu;
mod cpu_cap;
pub mod demo;
mod figure;
pub mod fsx;
pub mod ior;
pub mod lnet;
mod load;
pub mod mdsrate;
pub mod mdtest;
mod memory;
mod rendezvous;
mod report;
pub mod shrink;
mod subject;
pub mod survey;
mod task;
mod time_series;

pub use communicator::Communicator;
pub use compare::{Config, PASS_THROUGH, compare};
pub use cpu::wait_until_idle;
pub use cpu_cap::{CAP_MIN, CpuCap};
pub use figure::{Figure, Quantiles, csv, json};
pub use load::Phase;
pub use memory::resident_bytes;
pub use rendezvous::JobProcess;
pub use report::{Report, Row, Summary};
pub use subject::{
    DataFile, DataMode, DropCaches, LibrarySubject, MddSubject, NewFile, PathSubject, Subject,
};
pub use task::{Task, TaskProgress};
pub use time_series::{Window, windows};

/// `ENOENT`. Some operations tolerate a missing file or directory.
pub(crate) const ENOENT: i32 = wire::Errno::ENOENT.0;

/// A measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An operation of the load failed.
    #[error("{subject}: {operation} of {object} failed: {reason}")]
    Operation {
        /// The subject.
        subject: String,
        /// The operation.
        operation: &'static str,
        /// The path of the file or directory, or another object such as the store.
        object: String,
        /// The reason.
        reason: String,
        /// The error number; 0: none.
        errno: i32,
    },
    /// Invalid options.
    #[error("{0}")]
    Options(String),
    /// The tasks of several processes cannot connect.
    #[error("the tasks cannot connect through {place}: {reason}")]
    Rendezvous {
        /// The file with the address of rank 0, or its directory.
        place: String,
        /// The reason.
        reason: String,
    },
    /// Another task ended before all tasks had contributed to an exchange.
    #[error("another task has ended: see its error")]
    PeerEnded,
    /// The network or LNet selftest failed.
    #[error("{object}: {reason}")]
    Network {
        /// The load or the NID.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The servers, clients or caches of a benchmark cannot be prepared, or a measurement on them
    /// failed.
    #[error("{object}: {reason}")]
    Stage {
        /// The servers and clients, the name of a configuration, or the caches.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The program was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Whether an operation failed with this error number.
    pub(crate) fn has_errno(&self, number: i32) -> bool {
        matches!(self, BenchError::Operation { errno, .. } if *errno == number)
    }
}
