//! The object target: objects, precreation, grants, read and write (guide, section 8).
//!
//! [`Ost`] is a target of the RPC layer. It keeps data in an [`osd`] store, takes and gives locks through [`ldlm`], gets its
//! FID sequences from MDT0, and answers before a change is on disk: `commit` makes changes durable a little later and
//! says up to which transaction. What the protocol prescribes about grants (`grant`), precreation (`sequence`) and
//! negotiation (`negotiate`) is without I/O.

mod attr;
mod brw;
mod capa;
pub mod check;
mod commit;
mod create;
mod error;
mod fiemap;
mod file_of;
mod gone;
mod grant;
mod io;
mod lvb;
mod negotiate;
mod object;
mod params_of;
mod sequence;
mod settings;
mod stats;
mod super_sequence;
mod target;

pub use error::OstError;
pub use target::{BRW_SIZE_MAX, Ost, OstConfig};
