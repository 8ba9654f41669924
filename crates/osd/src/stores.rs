//! The stores of one target, as one factory: the index and the objects. Only this module and the
//! `nacre` command know the kinds of stores; all other code uses the trait.

use std::path::PathBuf;
use std::sync::Arc;

use cpt::BoxFuture;

use crate::{
    BootId, Index, LocalConfig, LocalIndex, LocalObjects, MemoryIndex, MemoryObjects, Objects, OsdError,
    Space, blocking,
    overlay::{OverlayIndex, OverlayObjects},
    target::{self, Fence, TargetDir},
};

/// Opens the stores of a target.
pub trait Stores: Send + Sync {
    /// Whether the target ran before: then its stores exist, and a missing one is an error.
    fn has_run(&self) -> bool;

    /// The boot id of the machine that holds the stores. The writes of a killed process stay in the
    /// page cache until the machine restarts.
    fn boot_id(&self) -> BootId {
        BootId::current()
    }

    /// Records that the target ran: from now on its stores must exist. Stores in memory record
    /// nothing, because a start creates them.
    ///
    /// # Errors
    ///
    /// [`OsdError::Target`] if the record cannot be written.
    fn set_has_run(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async { Ok(()) })
    }

    /// Opens the index; creates an empty one for a target that never ran.
    ///
    /// # Errors
    ///
    /// [`OsdError::Full`] without space to start, [`OsdError::MissingStore`] if the index of a
    /// target that ran is missing, [`OsdError::DamagedJournal`], [`OsdError::DamagedIndex`],
    /// [`OsdError::Corrupt`] or [`OsdError::Engine`] if it is damaged.
    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>>;

    /// Opens the index for reading; nothing in it changes ([`LocalIndex::open_read_only`]).
    ///
    /// # Errors
    ///
    /// [`OsdError::MissingStore`] if the index is missing, [`OsdError::DamagedIndex`] or
    /// [`OsdError::Engine`] if it is damaged.
    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>>;

    /// Opens the objects; `index` is the index of the same target, which may hold the objects'
    /// attributes.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if the directory of objects cannot be created.
    fn open_objects<'a>(
        &'a self,
        index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>>;
}

/// Stores in the memory of this process, of at most this many bytes. They are lost when the process
/// ends, and each open returns an empty store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStores(pub u64);

impl Stores for MemoryStores {
    fn has_run(&self) -> bool {
        false
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async { Ok(Arc::new(MemoryIndex::new(Space::of_memory(self.0))) as Arc<dyn Index>) })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        self.open_index()
    }

    fn open_objects<'a>(
        &'a self,
        index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        Box::pin(async { Ok(Arc::new(MemoryObjects::new(index.space().clone())) as Arc<dyn Objects>) })
    }
}

/// Stores in a target's directory on the local file system (see [`target`]).
#[derive(Clone, Debug)]
pub struct LocalStores {
    target: PathBuf,
    fence: Fence,
}

impl LocalStores {
    /// The stores of an open target.
    pub fn of(target: &TargetDir) -> LocalStores {
        LocalStores {
            target: target.path().to_owned(),
            fence: target.fence().clone(),
        }
    }

    /// Stores in a directory that no server uses, such as that of a benchmark.
    pub fn in_dir(dir: impl Into<PathBuf>) -> LocalStores {
        let target = dir.into();
        LocalStores {
            fence: Fence::unshared(&target),
            target,
        }
    }

    fn config(&self) -> LocalConfig {
        LocalConfig {
            initialised: self.has_run(),
            ..LocalConfig::default()
        }
    }
}

impl Stores for LocalStores {
    fn has_run(&self) -> bool {
        target::TargetLabel::read(&self.target).is_ok_and(|label| label.initialised)
    }

    fn set_has_run(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        let path = self.target.clone();
        Box::pin(blocking(move || {
            target::set_initialised(&path).map_err(OsdError::Target)
        }))
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        let (path, config, fence) = (self.fence.index(), self.config(), self.fence.clone());
        Box::pin(async move {
            let index = blocking(move || LocalIndex::open_fenced(&path, config, &fence)).await?;
            Ok(Arc::new(OverlayIndex::new(Arc::new(index))) as Arc<dyn Index>)
        })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        let (path, config) = (target::index_dir(&self.target), self.config());
        Box::pin(async move {
            let index = blocking(move || LocalIndex::open_read_only(&path, config)).await?;
            Ok(Arc::new(index) as Arc<dyn Index>)
        })
    }

    fn open_objects<'a>(
        &'a self,
        index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        let (path, fence) = (self.target.join(target::OBJECTS), self.fence.clone());
        // The files stay, so their records must stay too, also behind a barrier.
        let index = index.below().unwrap_or(index).clone();
        Box::pin(async move {
            let objects = blocking(move || LocalObjects::open_fenced(&path, index, &fence)).await?;
            objects.remove_copied().await?;
            Ok(Arc::new(OverlayObjects::new(Arc::new(objects))) as Arc<dyn Objects>)
        })
    }
}
