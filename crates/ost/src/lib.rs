//! The object storage target (OST): objects, precreation, grants, read and write (docs/protocol.md,
//! "Data (OST)").
//!
//! [`Ost`] is a target of the RPC layer. It keeps data in an [`osd`] store, locks objects through
//! [`ldlm`], and gets its FID sequences from MDT0. It replies before a change is on disk: `commit`
//! syncs changes at most 2 s later and reports the last committed transaction. After a restart,
//! clients replay the changes that are perhaps not on disk (`recovery`). The protocol's rules for
//! grants (`grant`), precreation (`sequence`) and connect negotiation (`negotiate`) are free of
//! I/O.

mod attr;
mod capa;
pub mod check;
mod commit;
mod create;
mod error;
mod fid2path;
mod fiemap;
mod grant;
mod io;
mod lvb;
mod modification_data;
mod negotiate;
mod newcomers;
mod object;
mod parameters;
mod recovery;
mod scrub;
mod sequence;
mod stats;
mod super_sequence;
mod target;
mod tombstones;
mod writers;

pub use error::OstError;
pub use target::{BRW_SIZE_MAX, Ost, OstConfig};
