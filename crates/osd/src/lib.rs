//! The storage of a target (Lustre's OSD layer): a transactional index for metadata, and objects
//! for data.
//!
//! Two small traits, [`Index`] and [`Objects`], each have an implementation in memory and one on
//! the local file system. [`target`] is the target's directory: its label, written by `mkfs`, and
//! the lock that lets only one process open it. Users of the traits must not assume fast commits or
//! a local path.

mod boot_id;
pub mod check;
mod destroy;
mod error;
pub mod files;
mod index;
pub mod journal;
mod local_index;
mod local_objects;
mod memory_index;
mod memory_objects;
mod objects;
mod parameters;
mod reclaim;
mod space;
pub mod target;
mod transactions;

use std::{path::PathBuf, sync::Arc};

pub use boot_id::BootId;
pub use error::OsdError;
pub use index::{Batch, Index, KEY_RESERVED, prefix_end};
pub use local_index::{LocalConfig, LocalIndex};
pub use local_objects::LocalObjects;
pub use memory_index::MemoryIndex;
pub use memory_objects::MemoryObjects;
pub use objects::{CachedAttr, ObjAttr, Objects, Seek, SetAttr};
pub use space::{DiskShare, Space, SpacePurpose};
pub use transactions::{TransactionGuard, Transactions};

/// The place of a target's stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Memory of this process, up to this many bytes; lost when the process ends.
    Memory(u64),
    /// The target's directory on the local file system (see [`target`]).
    Local(PathBuf),
}

impl StoreKind {
    /// Whether the target ran before: then its stores exist, and a missing one is an error.
    pub fn has_run(&self) -> bool {
        match self {
            StoreKind::Memory(_) => false,
            StoreKind::Local(dir) => target::TargetLabel::read(dir).is_ok_and(|label| label.initialised),
        }
    }
}

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

fn config_of(kind: &StoreKind) -> LocalConfig {
    LocalConfig {
        initialised: kind.has_run(),
        ..LocalConfig::default()
    }
}

/// Opens a target's index; creates an empty one for a target that never ran.
///
/// # Errors
///
/// [`OsdError::Full`] without space to start, [`OsdError::MissingStore`] if the index of a target
/// that ran is missing, [`OsdError::DamagedJournal`], [`OsdError::Corrupt`] or [`OsdError::Engine`]
/// if it is damaged.
pub async fn open_index(kind: &StoreKind) -> Result<Arc<dyn Index>, OsdError> {
    match kind {
        StoreKind::Memory(bytes) => Ok(Arc::new(MemoryIndex::new(Space::of_memory(*bytes)))),
        StoreKind::Local(dir) => {
            let (path, config) = (dir.join(target::INDEX), config_of(kind));
            Ok(Arc::new(blocking(move || LocalIndex::open(&path, config)).await?))
        }
    }
}

/// Opens a target's index for reading; nothing in it changes ([`LocalIndex::open_read_only`]). A
/// store in memory gives an empty index.
///
/// # Errors
///
/// [`OsdError::MissingStore`] if the index is missing, [`OsdError::Engine`] if it is damaged.
pub async fn open_index_read_only(kind: &StoreKind) -> Result<Arc<dyn Index>, OsdError> {
    match kind {
        StoreKind::Memory(_) => Ok(Arc::new(MemoryIndex::default())),
        StoreKind::Local(dir) => {
            let (path, config) = (dir.join(target::INDEX), config_of(kind));
            Ok(Arc::new(
                blocking(move || LocalIndex::open_read_only(&path, config)).await?,
            ))
        }
    }
}

/// Opens a target's objects; `index` is the index of the same target, which holds the attributes of
/// local objects.
///
/// # Errors
///
/// [`OsdError::Io`] if the directory of objects cannot be created.
pub async fn open_objects(kind: &StoreKind, index: &Arc<dyn Index>) -> Result<Arc<dyn Objects>, OsdError> {
    match kind {
        StoreKind::Memory(_) => Ok(Arc::new(MemoryObjects::new(index.space().clone()))),
        StoreKind::Local(dir) => {
            let (path, index) = (dir.join(target::OBJECTS), index.clone());
            Ok(Arc::new(
                blocking(move || LocalObjects::open(&path, index)).await?,
            ))
        }
    }
}

/// Runs a function that blocks on the disk on a thread for blocking work. Fails with
/// [`OsdError::Stopping`] if the runtime shuts down first.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, OsdError> + Send + 'static,
) -> Result<T, OsdError> {
    match tokio::task::spawn_blocking(f).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(OsdError::Stopping),
    }
}
