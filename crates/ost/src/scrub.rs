//! Reads all objects from time to time, with a limited bandwidth: finds data that does not match
//! its checksum, and records checksums of data that has none ([`Objects::scrub`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use osd::{Index, Objects, OsdError, check::objects_after};
use tokio::time::Instant;

/// Time from the start of the target to the first pass.
const START_DELAY: Duration = Duration::from_secs(60);
/// Time from the start of a pass to the start of the next one.
const PASS_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Default bandwidth, MiB/s.
const SPEED_DEFAULT: u64 = 8;
/// The largest bandwidth, MiB/s.
pub(crate) const SPEED_MAX: u64 = 1 << 20;
/// A pass waits when it is ahead of its bandwidth by this time.
const AHEAD_MAX: Duration = Duration::from_millis(20);
/// Interval at which a pass that a bandwidth of 0 stopped checks the bandwidth.
const PAUSE: Duration = Duration::from_secs(1);
/// Objects listed at once.
const PAGE: usize = 1024;

/// The state of a target's scrub.
pub(crate) struct Scrub {
    /// Bandwidth, MiB/s; 0 stops the scrub.
    pub(crate) speed: Arc<AtomicU64>,
    passes: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
    filled: AtomicU64,
    damaged: AtomicU64,
}

impl Default for Scrub {
    fn default() -> Scrub {
        Scrub {
            speed: Arc::new(AtomicU64::new(SPEED_DEFAULT)),
            passes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        }
    }
}

impl Scrub {
    /// The number of blocks that did not match their checksum.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.load(Relaxed)
    }

    /// The counts since the target's start, as lines of a parameter.
    pub(crate) fn text(&self) -> String {
        let counts = [
            ("passes", &self.passes),
            ("objects", &self.objects),
            ("bytes", &self.bytes),
            ("filled_blocks", &self.filled),
            ("damaged_blocks", &self.damaged),
        ];
        let line = |(name, count): (&str, &AtomicU64)| format!("{name}: {}\n", count.load(Relaxed));
        counts.map(line).concat()
    }

    /// Scrubs until the task is aborted.
    pub(crate) async fn run(&self, index: Arc<dyn Index>, objects: Arc<dyn Objects>, svname: String) {
        tokio::time::sleep(START_DELAY).await;
        loop {
            let start = Instant::now();
            match self.pass(&index, &*objects).await {
                Ok(()) => drop(self.passes.fetch_add(1, Relaxed)),
                Err(e) => tracing::warn!("{svname}: the scrub of the objects ends early: {e}"),
            }
            tokio::time::sleep_until(start + PASS_INTERVAL).await;
        }
    }

    async fn pass(&self, index: &Arc<dyn Index>, objects: &dyn Objects) -> Result<(), OsdError> {
        let mut after = None;
        let mut due = Instant::now();
        loop {
            let fids = objects_after(index.clone(), after, PAGE).await?;
            let Some(last) = fids.last() else {
                return Ok(());
            };
            after = Some(*last);
            for fid in fids {
                let mut next = Some(0);
                while let Some(offset) = next {
                    let speed = self.wait_for_turn(&mut due).await;
                    let scrubbed = match objects.scrub(fid, offset, true).await {
                        Err(e @ OsdError::Stopping) => return Err(e),
                        // One object must not end the scrub of the others.
                        Err(e) => {
                            tracing::error!(%fid, "cannot scrub the object: {e}");
                            break;
                        }
                        Ok(scrubbed) => scrubbed,
                    };
                    due += Duration::from_nanos(scrubbed.bytes * 1_000_000_000 / (speed << 20));
                    self.bytes.fetch_add(scrubbed.bytes, Relaxed);
                    self.filled.fetch_add(scrubbed.filled, Relaxed);
                    self.damaged.fetch_add(scrubbed.damaged.len() as u64, Relaxed);
                    next = scrubbed.next;
                }
                self.objects.fetch_add(1, Relaxed);
            }
        }
    }

    /// Waits until the bandwidth permits a read; returns the bandwidth, MiB/s.
    async fn wait_for_turn(&self, due: &mut Instant) -> u64 {
        let now = Instant::now();
        if *due > now + AHEAD_MAX {
            tokio::time::sleep_until(*due).await;
        }
        // Bandwidth that a pause leaves unused does not accumulate.
        *due = (*due).max(now);
        loop {
            match self.speed.load(Relaxed) {
                0 => tokio::time::sleep(PAUSE).await,
                speed => return speed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use osd::{LocalObjects, MemoryIndex, SetAttr};
    use wire::Fid;

    use super::*;

    #[tokio::test]
    async fn a_pass_fills_and_finds_damage() {
        let dir = tempfile::tempdir().unwrap();
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let objects: Arc<dyn Objects> = Arc::new(LocalObjects::open(dir.path(), index.clone()).unwrap());
        let fid = |oid| Fid::new(0x2_4000_0400, oid, 0);
        for oid in 1..=3 {
            let data = vec![Bytes::from(vec![oid as u8; 10_000])];
            objects
                .write(fid(oid), 0, data, SetAttr::default())
                .await
                .unwrap();
        }
        objects.sync(None).await.unwrap();
        let scrub = Scrub::default();
        scrub.speed.store(SPEED_MAX, Relaxed);
        scrub.pass(&index, &*objects).await.unwrap();
        assert_eq!(
            scrub.text(),
            "passes: 0\nobjects: 3\nbytes: 30000\nfilled_blocks: 0\ndamaged_blocks: 0\n"
        );
        let file = osd::check::object_file(dir.path(), &fid(2), 0);
        let mut data = std::fs::read(&file).unwrap();
        data[5000] ^= 1;
        std::fs::write(&file, data).unwrap();
        scrub.pass(&index, &*objects).await.unwrap();
        assert_eq!(scrub.damaged(), 1);
    }
}
