//! Stores of targets that restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cpt::BoxFuture;
use osd::{Index, MemoryObjects, MemoryStores, Objects, OsdError, Stores};

/// Stores in memory that the next start of the target finds again. Clones share them.
#[derive(Clone)]
pub struct RestartableMemoryStores {
    index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
    has_run: Arc<AtomicBool>,
}

impl RestartableMemoryStores {
    /// Empty stores with at most `bytes` bytes.
    pub async fn new(bytes: u64) -> RestartableMemoryStores {
        let memory = MemoryStores(bytes);
        let index = memory.open_index().await.unwrap();
        RestartableMemoryStores {
            objects: memory.open_objects(&index).await.unwrap(),
            index,
            has_run: Arc::default(),
        }
    }
}

impl Stores for RestartableMemoryStores {
    fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Relaxed)
    }

    fn set_has_run(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        self.has_run.store(true, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async { Ok(self.index.clone()) })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        self.open_index()
    }

    fn open_objects<'a>(
        &'a self,
        _: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        Box::pin(async { Ok(self.objects.clone()) })
    }
}

/// Stores with an index that the test supplies. Each start creates a new object store in memory,
/// without objects.
pub struct StoresWithIndex(pub Arc<dyn Index>);

impl Stores for StoresWithIndex {
    fn has_run(&self) -> bool {
        false
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async { Ok(self.0.clone()) })
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
