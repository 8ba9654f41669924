//! How much space is free: asked of the store at most once a second, and reckoned in between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use osd::{Objects, OsdError, StatFs};
use parking_lot::Mutex;
use tokio::time::Instant;

const AGE_MAX: Duration = Duration::from_secs(1);

/// The free space of the target.
pub(crate) struct Space {
    objects: Arc<dyn Objects>,
    known: Mutex<(Instant, StatFs)>,
    /// Written since it was asked.
    used_bytes: AtomicU64,
}

impl Space {
    pub(crate) async fn new(objects: Arc<dyn Objects>) -> Result<Space, OsdError> {
        let now = objects.statfs().await?;
        Ok(Space {
            objects,
            known: Mutex::new((Instant::now(), now)),
            used_bytes: AtomicU64::new(0),
        })
    }

    /// What the store says, at most a second old.
    pub(crate) async fn statfs(&self) -> Result<StatFs, OsdError> {
        let (at, known) = *self.known.lock();
        if at.elapsed() < AGE_MAX {
            return Ok(known);
        }
        let now = self.objects.statfs().await?;
        *self.known.lock() = (Instant::now(), now);
        self.used_bytes.store(0, Relaxed);
        Ok(now)
    }

    /// Free bytes, asked again if what is known is too old; when the store does not answer, as last known.
    pub(crate) async fn free_bytes(&self) -> u64 {
        if let Err(e) = self.statfs().await {
            tracing::warn!("statfs: {e}");
        }
        self.known_free_bytes()
    }

    /// Free bytes, without asking.
    pub(crate) fn known_free_bytes(&self) -> u64 {
        let s = self.known.lock().1;
        (s.bavail * u64::from(s.bsize)).saturating_sub(self.used_bytes.load(Relaxed))
    }

    /// So much more has been written.
    pub(crate) fn used(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
    }
}
