//! File data: objects on their targets, extent locks, the page cache, read-ahead and write-back.
//!
//! [`Lov`] knows the targets, an `Osc` is the client of one of them, an `Object` is one object's cache under its locks,
//! and a [`DataFile`] spreads a file over its objects as its layout says.

mod assembled;
mod brw;
mod budget;
mod cache;
mod cached;
mod change_seq;
mod descriptors;
mod file;
mod losses;
mod lov;
mod object;
mod osc;
mod ranges;
mod read_ahead;

pub use file::{DataFile, Fallocate, Seek};
pub use lov::{DataConfig, Lov};

pub(crate) use descriptors::Descriptor;
pub(crate) use losses::SeenLosses;
pub(crate) use object::User;
pub(crate) use ranges::RangeSet;
