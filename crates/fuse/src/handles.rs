//! Open files and directories by the number that the kernel knows them by.

use foldhash::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// Numbers and what they stand for.
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

    /// A number for it.
    pub(crate) fn insert(&self, t: Arc<T>) -> u64 {
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(fh).lock().insert(fh, t);
        fh
    }

    /// What a number stands for.
    pub(crate) fn get(&self, fh: u64) -> Option<Arc<T>> {
        self.shard(fh).lock().get(&fh).cloned()
    }

    /// The number is given back.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.shard(fh).lock().remove(&fh)
    }

    /// All that are open, closed at once (the mount is gone).
    pub(crate) fn drain(&self) -> Vec<Arc<T>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().drain().map(|(_, t)| t).collect::<Vec<_>>())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Handles;
    use std::sync::Arc;

    #[test]
    fn a_number_stands_for_one_thing_until_it_is_given_back() {
        let h = Handles::new();
        let (a, b) = (h.insert(Arc::new("a")), h.insert(Arc::new("b")));
        assert_ne!(a, b);
        assert_eq!(h.get(a).as_deref(), Some(&"a"));
        assert!(h.remove(a).is_some());
        assert!(h.get(a).is_none() && h.remove(a).is_none());
        assert_eq!(h.drain().len(), 1);
    }
}
