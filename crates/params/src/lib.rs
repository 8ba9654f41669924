//! Parameters under Lustre's names: one registry, read and set at run time.
//!
//! A [`Registry`] maps names like `osc.testfs-OST0000-osc-ab12.max_rpcs_in_flight` to a [`Param`]: a function that shows
//! the value and, where it can be changed, one that sets it. Whoever owns the value registers it and keeps the
//! [`Registered`] (or a [`Group`] of them): the name is gone when that is dropped. The registry holds no values, and no
//! lock while it calls a parameter's functions, so that those may take locks of their own. What can only be chosen when a
//! process starts is declared in the tables of [`start`].

mod glob;
mod param;
mod registry;
pub mod start;
mod tally;

pub use param::Param;
pub use registry::{Group, ParamInfo, Registered, Registry};
pub use start::StartParam;
pub use tally::{Sums, Tally, stats_header};

/// Why a parameter could not be read or set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// Nothing has a name that the pattern matches.
    #[error("no parameter matches '{pattern}'")]
    NotFound {
        /// The pattern that was asked for.
        pattern: String,
    },
    /// The parameter shows something and cannot be set.
    #[error("parameter '{name}' is read-only")]
    ReadOnly {
        /// The parameter's full name.
        name: String,
    },
    /// The parameter does not take this value.
    #[error("cannot set '{name}' to '{value}': {why}")]
    Invalid {
        /// The parameter's full name.
        name: String,
        /// What was to be set.
        value: String,
        /// What the parameter expects.
        why: String,
    },
}
