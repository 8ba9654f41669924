//! The limit of cached data of a mount, over all objects: `llite.*.max_cached_mb`.
//!
//! Eviction is a second-chance clock. Above the limit, a hand moves over all cached extents: target
//! by target, object by object, from start to end. An extent used since the hand's last pass stays
//! for one more round; an unused clean extent is dropped. So a read only marks its extents as used,
//! under the object's own lock; it takes no lock that all objects share. One task at a time moves
//! the hand, by a bounded number of steps. A task that finds another task at the hand evicts
//! nothing.

use super::cache::SweepResult;
use params::{Group, Param, Registry};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use wire::LdlmResId;

/// The default limit is the process's memory divided by this, within [`LIMIT_RANGE_MIB`].
const MEMORY_DIVISOR: u64 = 16;
/// Least and largest limit, in MiB.
const LIMIT_RANGE_MIB: (u64, u64) = (32, 1 << 30);
/// Largest number of steps of one eviction. Each visited object and each visited extent is a step.
const STEPS_MAX: usize = 4096;

/// The limit, the cached bytes, and the position of the hand.
#[derive(Debug)]
pub(super) struct CacheLimit {
    max_mib: Arc<AtomicU64>,
    cached_bytes: AtomicU64,
    targets: RwLock<Vec<Weak<dyn CachedObjects>>>,
    hand: Mutex<ClockHand>,
}

/// Position of the hand. The hand has visited everything before this position in the current round.
#[derive(Debug, Default)]
struct ClockHand {
    /// Index in [`CacheLimit::targets`].
    target: usize,
    /// The object; `None`: the first one.
    object: Option<LdlmResId>,
    /// Offset in the object, in bytes.
    offset: u64,
}

/// The objects of a target, whose cached bytes count for the limit.
pub(super) trait CachedObjects: Send + Sync {
    /// Moves the hand over the next object: the first one at or after this resource (`None`: the
    /// first of all), and in the object with this resource from this offset on. Frees at least
    /// `bytes` bytes if it can, in at most `steps_max` steps. `None`: there is no such object.
    fn sweep(
        &self,
        from: (Option<&LdlmResId>, u64),
        bytes: u64,
        steps_max: usize,
    ) -> Option<(LdlmResId, SweepResult)>;
}

impl Default for CacheLimit {
    /// The default for the memory of the process.
    fn default() -> CacheLimit {
        CacheLimit::new(
            ((cpt::memory_bytes() / MEMORY_DIVISOR) >> 20).clamp(LIMIT_RANGE_MIB.0, LIMIT_RANGE_MIB.1),
        )
    }
}

impl CacheLimit {
    fn new(max_mib: u64) -> CacheLimit {
        CacheLimit {
            max_mib: Arc::new(AtomicU64::new(max_mib)),
            cached_bytes: AtomicU64::new(0),
            targets: RwLock::default(),
            hand: Mutex::default(),
        }
    }

    /// Includes a target's objects in the limit.
    pub(super) fn add(&self, objects: Weak<dyn CachedObjects>) {
        self.targets.write().push(objects);
    }

    /// Counts a change of an object's cached bytes from `before` to `now`. Evicts if the limit is
    /// exceeded.
    pub(super) fn update(&self, before: u64, now: u64) {
        self.cached_bytes.fetch_add(now.wrapping_sub(before), Relaxed);
        if now > before {
            self.evict();
        }
    }

    /// Cached bytes above the limit.
    fn excess_bytes(&self) -> u64 {
        let max = self.max_mib.load(Relaxed) << 20;
        self.cached_bytes.load(Relaxed).saturating_sub(max)
    }

    fn evict(&self) {
        let mut steps = STEPS_MAX;
        while self.excess_bytes() > 0 && steps > 0 {
            let Some(mut hand) = self.hand.try_lock() else {
                return;
            };
            let Some(objects) = self.target_at(&mut hand) else {
                return;
            };
            steps -= 1;
            let from = (hand.object.as_ref(), hand.offset);
            let Some((res, swept)) = objects.sweep(from, self.excess_bytes(), steps) else {
                (hand.target, hand.object, hand.offset) = (hand.target + 1, None, 0);
                continue;
            };
            steps -= swept.steps.min(steps);
            (hand.object, hand.offset) = match swept.next {
                Some(offset) => (Some(res), offset),
                None => (Some(successor(res)), 0),
            };
        }
    }

    /// The target at the hand. After the last target, the hand returns to the first.
    fn target_at(&self, hand: &mut ClockHand) -> Option<Arc<dyn CachedObjects>> {
        let targets = self.targets.read();
        if hand.target >= targets.len() {
            *hand = ClockHand::default();
        }
        targets.get(hand.target)?.upgrade()
    }

    /// Registers `max_cached_mb`, in Lustre's format.
    pub(super) fn register_params(self: &Arc<Self>, registry: &Registry, name: &str) -> Group {
        let mut group = registry.group(format!("llite.{name}"));
        let (shown, changed) = (self.clone(), self.clone());
        let param = Param::read_write(
            move || shown.show_value(),
            move |text| {
                changed.set(text)?;
                changed.evict();
                Ok(())
            },
        );
        group.add(
            "max_cached_mb",
            param.about("limit of cached data, MiB; data that was not used lately is evicted first"),
        );
        group
    }

    fn show_value(&self) -> String {
        let max = self.max_mib.load(Relaxed);
        let used = self.cached_bytes.load(Relaxed) >> 20;
        format!(
            "max_cached_mb: {max}\nused_mb: {used}\nunused_mb: {}",
            max.saturating_sub(used)
        )
    }

    /// Sets the limit from a number in MiB, or from the line that the parameter shows.
    fn set(&self, text: &str) -> Result<(), String> {
        let number = text.trim().trim_start_matches("max_cached_mb:").trim();
        let mib = number
            .parse()
            .ok()
            .filter(|n| (LIMIT_RANGE_MIB.0..=LIMIT_RANGE_MIB.1).contains(n));
        let mib = mib.ok_or_else(|| {
            format!(
                "expected a whole number from {} to {}",
                LIMIT_RANGE_MIB.0, LIMIT_RANGE_MIB.1
            )
        })?;
        self.max_mib.store(mib, Relaxed);
        Ok(())
    }
}

/// The resource directly after `res` in the order of resources.
fn successor(res: LdlmResId) -> LdlmResId {
    let mut name = res.name;
    for word in name.iter_mut().rev() {
        let (next, carried) = word.overflowing_add(1);
        *word = next;
        if !carried {
            break;
        }
    }
    LdlmResId { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_cached_mb_has_lustres_format() {
        let limit = CacheLimit::new(100);
        limit.update(0, 30 << 20);
        assert_eq!(
            limit.show_value(),
            "max_cached_mb: 100\nused_mb: 30\nunused_mb: 70"
        );
        assert_eq!(limit.set("32"), Ok(()));
        limit.update(0, 10 << 20);
        assert_eq!(limit.show_value(), "max_cached_mb: 32\nused_mb: 40\nunused_mb: 0");
        assert_eq!(limit.set("max_cached_mb: 64"), Ok(()));
        assert!(limit.set("1").is_err() && limit.set("much").is_err());
        assert_eq!(limit.excess_bytes(), 0);
    }

    #[test]
    fn successor_of_a_resource_is_the_next_in_order() {
        let res = |name| LdlmResId { name };
        assert_eq!(successor(res([1, 2, 0, 0])), res([1, 2, 0, 1]));
        assert_eq!(
            successor(res([1, u64::MAX, u64::MAX, u64::MAX])),
            res([2, 0, 0, 0])
        );
    }
}
