//! What a target stores: a transactional index (metadata) and objects (data).
//!
//! Two small traits, [`Index`] and [`Objects`], each with an implementation in memory and one on the local file
//! system; [`target`] is what `mkfs` leaves in a target's directory and what keeps two servers from opening it at
//! the same time. The traits assume neither cheap synchronous commits nor local paths.

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
mod params_of;
mod reclaim;
mod run_of_machine;
mod space;
pub mod target;
mod transactions;

use std::{path::PathBuf, sync::Arc};

pub use error::OsdError;
pub use index::{Batch, Index, KEY_RESERVED, prefix_end};
pub use local_index::{LocalConfig, LocalIndex};
pub use local_objects::LocalObjects;
pub use memory_index::MemoryIndex;
pub use memory_objects::MemoryObjects;
pub use objects::{ObjAttr, Objects, Seek, SetAttr};
pub use run_of_machine::RunOfMachine;
pub use space::{Need, Share, Space};
pub use transactions::{InFlight, Transactions};

/// Where a target keeps its things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In so many bytes of this process's memory: gone when it ends.
    Memory(u64),
    /// In a directory of the local file system, the target's own (see [`target`]).
    Local(PathBuf),
}

impl StoreKind {
    /// Whether a target has run on it before: its stores are there, and no empty one may be made.
    pub fn has_run(&self) -> bool {
        match self {
            StoreKind::Memory(_) => false,
            StoreKind::Local(dir) => target::TargetLabel::read(dir).is_ok_and(|label| label.initialised),
        }
    }
}

/// The longest piece in which a read hands over data: what goes into one bulk descriptor.
pub const READ_PIECE: u64 = 1 << 20;

/// Space of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of a block, bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub bfree: u64,
    /// Blocks free to everyone.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes free.
    pub ffree: u64,
}

fn config_of(kind: &StoreKind) -> LocalConfig {
    LocalConfig {
        initialised: kind.has_run(),
        ..LocalConfig::default()
    }
}

/// Opens a target's index; makes an empty one where there is none.
pub async fn open_index(kind: &StoreKind) -> Result<Arc<dyn Index>, OsdError> {
    match kind {
        StoreKind::Memory(bytes) => Ok(Arc::new(MemoryIndex::new(Space::of_memory(*bytes)))),
        StoreKind::Local(dir) => {
            let (path, config) = (dir.join(target::INDEX), config_of(kind));
            Ok(Arc::new(blocking(move || LocalIndex::open(&path, config)).await?))
        }
    }
}

/// Opens a target's index to be read: nothing of it changes ([`LocalIndex::open_unchanged`]).
pub async fn open_index_unchanged(kind: &StoreKind) -> Result<Arc<dyn Index>, OsdError> {
    match kind {
        StoreKind::Memory(_) => Ok(Arc::new(MemoryIndex::default())),
        StoreKind::Local(dir) => {
            let (path, config) = (dir.join(target::INDEX), config_of(kind));
            Ok(Arc::new(
                blocking(move || LocalIndex::open_unchanged(&path, config)).await?,
            ))
        }
    }
}

/// Opens a target's objects; `index` is the index of the same target, where local objects keep their attributes.
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

/// Runs what waits for the disk away from the runtime's workers.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, OsdError> + Send + 'static,
) -> Result<T, OsdError> {
    match tokio::task::spawn_blocking(f).await {
        Ok(done) => done,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(OsdError::Stopping),
    }
}
