//! Loads that measure a file system, and the tables that say what came out.
//!
//! [`compare`](mod@compare) runs the same load on several subjects in turn (a bare disk, a pass-through FUSE file system, a
//! mount, the client library), several times over, so that what disturbs the machine disturbs them all, and
//! reports medians with their spread.

pub mod compare;
mod cpu;
mod load;
mod report;
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
    #[error("interrupted; what was measured so far is reported")]
    Interrupted,
}
