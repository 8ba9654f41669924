//! The storage of a target (Lustre's OSD layer): a transactional index for metadata, and objects
//! for data.
//!
//! Two small traits, [`Index`] and [`Objects`], each have an implementation in memory and one on
//! the local file system. The trait [`FileSystem`] lets a simulator replace the files of the local
//! objects. [`target`] is the target's directory: its label, written by `mkfs`, and the lock that
//! lets only one process open it. [`Barrier`] lets a target lose its later changes. Users of the
//! traits must not assume fast commits or a local path.

mod boot_id;
pub mod check;
pub mod clients;
mod describe;
mod destroy;
mod disk_speed;
pub mod engine_files;
mod error;
pub mod files;
mod holdings;
mod index;
mod index_read;
pub mod journal;
mod local_index;
mod local_objects;
mod memory_index;
mod memory_objects;
pub mod obdo;
mod objects;
mod overlay;
mod parameters;
mod reclaim;
mod space;
mod sparse_data;
mod stores;
pub mod target;
mod target_files;
mod transactions;

pub use boot_id::BootId;
pub use clients::ClientRecords;
pub use describe::{describe, describe_change};
pub(crate) use error::Failure;
pub use error::OsdError;
pub use index::{Batch, Index, KEY_RESERVED, USER_KEYS, prefix_end};
pub use index_read::IndexRead;
pub use local_index::{LocalConfig, LocalIndex};
pub use local_objects::{FileSystem, LocalObjects, ObjectFile};
pub use memory_index::MemoryIndex;
pub use memory_objects::MemoryObjects;
pub use objects::{CachedAttr, Extent, ExtentData, ObjAttr, Objects, Scrubbed, Seek, SetAttr};
pub use overlay::Barrier;
pub use space::{DiskShare, Space, SpacePurpose};
pub use sparse_data::SparseData;
pub use stores::{LocalStores, MemoryStores, Stores};
pub use target_files::{LocalFiles, MemoryFiles, TargetFiles};
pub use transactions::{TransactionGuard, Transactions};

/// Maximum length of one buffer returned by a read, bytes: the size of one bulk descriptor.
pub const READ_PIECE: u64 = 1 << 20;

/// Space of a store, as `statfs` reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block, bytes.
    pub bsize: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks available to users, without the reserve.
    pub bavail: u64,
    /// Number of inodes; 0 if the file system does not count them.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
}

/// Runs a function that blocks on the disk on a thread for blocking work. Fails with
/// [`OsdError::Stopping`] if the runtime shuts down first.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, OsdError> + Send + 'static,
) -> Result<T, OsdError> {
    match cpt::spawn_blocking(f).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(OsdError::Stopping),
    }
}
