//! Loads that measure a file system, and the tables that say what came out; and one that tries it.
//!
//! [`compare`](mod@compare) runs the same load on several subjects in turn (a bare disk, a pass-through FUSE file system, a
//! mount, the client library), several times over, so that what disturbs the machine disturbs them all, and
//! reports medians with their spread. [`fsx`](mod@fsx) does random operations on one file through several mounts and compares it with
//! memory.

pub mod compare;
mod cpu;
pub mod fsx;
mod load;
mod report;
pub mod shrink;
mod subject;

pub use compare::{Config, compare};
pub use report::{Report, Row, Summary};
pub use subject::{LibrarySubject, PathSubject, Subject};

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
    },
    /// The program was interrupted.
    #[error("interrupted")]
    Interrupted,
}
