//! The faults of the simulated network: how long frames take, and which frames are lost,
//! duplicated, reordered, or break their connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lnet::sim::{Fate, FrameInfo, FrameKind, Weather};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

/// The rates of network faults, frames per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFaultRates {
    /// Lost without an error.
    pub lost: u32,
    /// Delivered twice.
    pub doubled: u32,
    /// Overtaken by later frames.
    pub overtaken: u32,
    /// Lost together with their connection.
    pub broken: u32,
    /// Delivered before their connection breaks: the client sends a request again while the server
    /// executes it.
    pub broken_after: u32,
    /// Late by up to three seconds.
    pub late: u32,
}

/// The ordinary time of a frame, in microseconds.
const LATENCY: std::ops::Range<u64> = 50..2_000;
/// The time of a late or overtaken frame, in milliseconds.
const LATE: std::ops::Range<u64> = 1..3_000;

/// A hash of all events of a simulation: equal seeds give equal digests.
#[derive(Clone, Default)]
pub struct Digest(Arc<Mutex<Xxh3>>);

impl Digest {
    /// Adds an event with its time.
    pub fn add(&self, event: &[u8]) {
        crate::watchdog::count();
        let mut digest = self.0.lock();
        digest.update(&crate::system::elapsed().as_micros().to_le_bytes());
        digest.update(event);
    }

    /// The digest of all events so far.
    pub fn value(&self) -> u64 {
        self.0.lock().digest()
    }
}

/// Counts that show how much a run has tested.
#[derive(Debug, Default)]
pub struct Counts {
    /// Frames that arrived.
    pub frames: AtomicU64,
    /// Frames that were lost, doubled, overtaken, late, or broke their connection.
    pub disturbed: AtomicU64,
    /// Lock callbacks that arrived at clients.
    pub callbacks: AtomicU64,
}

/// The portal of lock callbacks.
const LDLM_CB_REQUEST_PORTAL: u32 = 15;

/// The weather of one run.
pub struct SeededWeather {
    rng: Rng,
    climate: Arc<Mutex<NetworkFaultRates>>,
    digest: Digest,
    counts: Arc<Counts>,
}

impl SeededWeather {
    /// Creates the weather from a seed. The caller may change the climate during the run.
    pub fn new(
        seed: u64,
        climate: Arc<Mutex<NetworkFaultRates>>,
        digest: Digest,
        counts: Arc<Counts>,
    ) -> SeededWeather {
        SeededWeather {
            rng: Rng::with_seed(seed),
            climate,
            digest,
            counts,
        }
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(LATENCY))
    }
}

impl Weather for SeededWeather {
    fn fate(&mut self, frame: &FrameInfo) -> Fate {
        let climate = *self.climate.lock();
        let latency = self.latency();
        let late = Duration::from_millis(self.rng.u64(LATE));
        let mut lot = self.rng.u32(0..1_000_000);
        let mut hits = |share: u32| {
            let hit = lot < share;
            lot = lot.wrapping_sub(share);
            hit
        };
        let fate = if hits(climate.lost) {
            Fate::Lose
        } else if hits(climate.doubled) {
            Fate::Duplicate(latency, late)
        } else if hits(climate.overtaken) {
            Fate::Reorder(late)
        } else if hits(climate.broken) {
            Fate::Break(latency)
        } else if hits(climate.broken_after) {
            Fate::DeliverThenBreak(latency)
        } else if hits(climate.late) {
            Fate::Deliver(late)
        } else {
            return Fate::Deliver(latency);
        };
        tracing::debug!(?frame, ?fate, "disturbed");
        self.counts.disturbed.fetch_add(1, Ordering::Relaxed);
        fate
    }

    fn arrived(&mut self, frame: &FrameInfo) {
        tracing::trace!(?frame, "arrived");
        self.counts.frames.fetch_add(1, Ordering::Relaxed);
        if frame.kind == FrameKind::Put && frame.portal == LDLM_CB_REQUEST_PORTAL {
            self.counts.callbacks.fetch_add(1, Ordering::Relaxed);
        }
        let mut event = Vec::with_capacity(32);
        event.extend(frame.from.0.to_le_bytes());
        event.extend(frame.to.0.to_le_bytes());
        event.push(frame.kind as u8);
        event.extend(frame.portal.to_le_bytes());
        event.extend((frame.bytes as u64).to_le_bytes());
        self.digest.add(&event);
    }
}
