//! The pool of an OST, shared by several tasks. Each create reads the number of available objects
//! of every OST, so a task can read this number without the pool's mutex.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use super::pool::{LastUsedId, Pool};

/// A pool that several tasks use. The number of available objects can be read without the mutex.
pub(crate) struct SharedPool {
    pool: Mutex<Pool>,
    available: AtomicU32,
}

/// The locked pool. Dropping the guard publishes the number of available objects.
pub(crate) struct PoolGuard<'a> {
    pool: MutexGuard<'a, Pool>,
    available: &'a AtomicU32,
}

impl SharedPool {
    /// The pool after a start.
    pub(crate) fn new(last_used: LastUsedId) -> SharedPool {
        let pool = Pool::new(last_used);
        SharedPool {
            available: pool.available().into(),
            pool: Mutex::new(pool),
        }
    }

    /// Locks the pool.
    pub(crate) fn lock(&self) -> PoolGuard<'_> {
        PoolGuard {
            pool: self.pool.lock(),
            available: &self.available,
        }
    }

    /// Number of available objects.
    pub(crate) fn available(&self) -> u32 {
        self.available.load(Ordering::Relaxed)
    }
}

impl Deref for PoolGuard<'_> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl DerefMut for PoolGuard<'_> {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }
}

impl Drop for PoolGuard<'_> {
    fn drop(&mut self) {
        self.available.store(self.pool.available(), Ordering::Relaxed);
    }
}
