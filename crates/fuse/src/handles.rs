//! File handles: the numbers by which the kernel names open files and directories.

use cpt::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// A sharded map from handles to open files or directories. Handles are never reused.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    shards: Vec<Mutex<HashMap<u64, Arc<T>>>>,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles {
            next: AtomicU64::new(1),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, fh: u64) -> &Mutex<HashMap<u64, Arc<T>>> {
        &self.shards[fh as usize % SHARDS]
    }

    /// Adds an open file or directory; returns its handle.
    pub(crate) fn insert(&self, file: Arc<T>) -> u64 {
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(fh).lock().insert(fh, file);
        fh
    }

    /// The open file or directory of a handle.
    pub(crate) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.shard(fh).lock().get(&fh).cloned()
    }

    /// Removes a handle; returns its open file or directory.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.shard(fh).lock().remove(&fh)
    }

    /// Removes all handles; returns the open files or directories.
    pub(crate) fn drain(&self) -> Vec<Arc<T>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().drain().map(|(_, file)| file).collect::<Vec<_>>())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Handles;
    use std::sync::Arc;

    #[test]
    fn handle_is_valid_until_removed() {
        let handles = Handles::new();
        let (a, b) = (handles.insert(Arc::new("a")), handles.insert(Arc::new("b")));
        assert_ne!(a, b);
        assert_eq!(handles.get(a).as_deref(), Some(&"a"));
        assert!(handles.remove(a).is_some());
        assert!(handles.get(a).is_none() && handles.remove(a).is_none());
        assert_eq!(handles.drain().len(), 1);
    }
}
