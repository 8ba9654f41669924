//! File data: objects on their OSTs, extent locks, page cache, read-ahead and write-back.
//!
//! [`Lov`] has the targets. An `Osc` is the client of one OST. An `Object` caches one object under
//! its locks; `OstObjects` has the objects of an OST. A [`DataFile`] maps a file to its objects by
//! its layout. The imports of these modules form no cycle.

mod brw;
mod budget;
mod cache;
mod cache_limit;
mod change_seq;
mod config;
mod descriptors;
mod file;
mod held_locks;
mod losses;
mod lov;
mod object;
mod objects;
mod osc;
mod ranged_ops;
mod ranges;
mod read_ahead;
mod striped_io;

pub use config::DataConfig;
pub use file::DataFile;
pub use lov::Lov;
pub use ranged_ops::{Appended, Fallocate, Seek};

pub(crate) use cache::PAGE_SIZE;
pub(crate) use descriptors::Descriptor;
pub(crate) use losses::LossCursor;
pub(crate) use object::{CapabilityUser, OpenedData, SetTimes};
pub(crate) use objects::DataWatch;
