//! Parameters under Lustre's names: a registry that reads and sets them at run time.
//!
//! A [`Registry`] maps names like `osc.testfs-OST0000-osc-ab12.max_rpcs_in_flight` to a [`Param`]:
//! a function that shows the value and, for writable parameters, one that sets it. The owner of a
//! value registers the parameter and keeps the [`ParamGuard`] (or a [`Group`] of guards); dropping
//! the guard removes the name. The registry does not store the values. It calls a parameter's
//! functions without holding a lock, so these functions may take locks. Parameters that can only be
//! set at the start of a process are rows of tables ([`StartParam`]).

mod glob;
mod histogram;
mod jobs;
mod keyed;
mod param;
mod registry;
pub mod start;
mod stats;
mod tally;
mod value;

pub use glob::matches_glob;
pub use histogram::{BUCKETS, Histogram, bucket_max};
pub use keyed::{KeyStats, KeyedStats};
pub use param::Param;
pub use registry::{Group, ParamGuard, ParamInfo, Registry};
pub use start::StartParam;
pub use stats::{Operations, StatsTable, USECS};
pub use tally::{Sums, Tally, as_usecs, stats_header, times_header};
pub use value::{Row, Stats, Value};

/// Errors of reading and setting parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// The pattern matches no parameter.
    #[error("no parameter matches '{pattern}'")]
    NotFound {
        /// The pattern.
        pattern: String,
    },
    /// The parameter cannot be set.
    #[error("parameter '{name}' is read-only{}{instead}", if instead.is_empty() { "" } else { ": " })]
    ReadOnly {
        /// The parameter's full name.
        name: String,
        /// Advice for a caller that tries to set the parameter; may be empty.
        instead: &'static str,
    },
    /// The parameter refuses this value.
    #[error("cannot set '{name}' to '{value}': {why}")]
    Invalid {
        /// The parameter's full name.
        name: String,
        /// The refused value.
        value: String,
        /// The values that the parameter expects, as a text.
        why: String,
    },
}
