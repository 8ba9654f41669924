//! File data: objects on their OSTs, extent locks, page cache, read-ahead and write-back.
//!
//! [`Lov`] has the targets. An `Osc` is the client of one OST. An `Object` caches one object under
//! its locks. A [`DataFile`] stripes a file over its objects by its layout.

mod brw;
mod budget;
mod cache;
mod cache_limit;
mod change_seq;
mod descriptors;
mod file;
mod held_locks;
mod losses;
mod lov;
mod object;
mod osc;
mod ranged_ops;
mod ranges;
mod read_ahead;
mod striped_io;

pub use file::DataFile;
pub use lov::{DataConfig, Lov};
pub use ranged_ops::{Appended, Fallocate, Seek};

pub(crate) use cache::PAGE_SIZE;
pub(crate) use descriptors::Descriptor;
pub(crate) use losses::LossCursor;
pub(crate) use object::CapabilityUser;
pub(crate) use ranges::RangeSet;
