//! How much data a mount keeps, of all its objects together: `llite.*.max_cached_mb`.
//!
//! When there is too much, a hand goes round over all that is cached: target by target, object by object, from the
//! beginning of each to its end. What was used since it came by last stays for one more round, the rest goes, unless it
//! is still to be written. So reading only marks what it reads, under its object's own lock; and one at a time moves the
//! hand, a bounded way: whoever finds another at it goes on.

use super::osc::Osc;
use params::{Group, Param, Registry};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use wire::LdlmResId;

/// Part of the process's memory that a mount may keep data in, unless it is told otherwise.
const SHARE: u64 = 16;
/// The least and the most that it may be set to, MiB.
const MIB: (u64, u64) = (32, 1 << 30);
/// Extents, and objects without any, that one way of the hand goes past.
const STEPS_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Cached {
    max_mib: Arc<AtomicU64>,
    used: AtomicU64,
    oscs: RwLock<Vec<Weak<Osc>>>,
    hand: Mutex<Hand>,
}

/// Where the hand is: all before it has been looked at in this round.
#[derive(Debug, Default)]
struct Hand {
    osc: usize,
    object: Option<LdlmResId>,
    offset: u64,
}

/// What a way of the hand over one object came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swept {
    /// Extents that were looked at.
    pub steps: usize,
    /// Where to go on; `None`: all of it was looked at.
    pub next: Option<u64>,
}

impl Default for Cached {
    /// By the memory that the process may use.
    fn default() -> Cached {
        Cached::new(((cpt::memory_bytes() / SHARE) >> 20).clamp(MIB.0, MIB.1))
    }
}

impl Cached {
    fn new(max_mib: u64) -> Cached {
        Cached {
            max_mib: Arc::new(AtomicU64::new(max_mib)),
            used: AtomicU64::new(0),
            oscs: RwLock::default(),
            hand: Mutex::default(),
        }
    }

    /// What a target's objects keep counts from now on.
    pub(super) fn add(&self, osc: &Arc<Osc>) {
        self.oscs.write().push(Arc::downgrade(osc));
    }

    /// An object that kept `before` bytes keeps `now`; makes room when there is too much.
    pub(super) fn changed(&self, before: u64, now: u64) {
        self.used.fetch_add(now.wrapping_sub(before), Relaxed);
        if now > before {
            self.make_room();
        }
    }

    fn surplus(&self) -> u64 {
        let max = self.max_mib.load(Relaxed) << 20;
        self.used.load(Relaxed).saturating_sub(max)
    }

    fn make_room(&self) {
        let mut steps = STEPS_MAX;
        while self.surplus() > 0 && steps > 0 {
            let Some(mut hand) = self.hand.try_lock() else {
                return;
            };
            let Some(osc) = self.osc_at(&mut hand) else { return };
            steps -= 1;
            let Some(object) = osc.object_from(hand.object.as_ref()) else {
                (hand.osc, hand.object, hand.offset) = (hand.osc + 1, None, 0);
                continue;
            };
            let res = *object.resource();
            if hand.object != Some(res) {
                (hand.object, hand.offset) = (Some(res), 0);
            }
            let swept = object.sweep(hand.offset, self.surplus(), steps);
            steps -= swept.steps.min(steps);
            // It may have come out of use meanwhile.
            osc.unused(object);
            match swept.next {
                Some(offset) => hand.offset = offset,
                None => (hand.object, hand.offset) = (Some(behind(res)), 0),
            }
        }
    }

    fn osc_at(&self, hand: &mut Hand) -> Option<Arc<Osc>> {
        let oscs = self.oscs.read();
        if hand.osc >= oscs.len() {
            *hand = Hand::default();
        }
        oscs.get(hand.osc)?.upgrade()
    }

    /// Shows the limit and what is used of it as `max_cached_mb`, as Lustre shows it.
    pub(super) fn show(self: &Arc<Self>, registry: &Registry, name: &str) -> Group {
        let mut group = registry.group(format!("llite.{name}"));
        let (shown, set) = (self.clone(), self.clone());
        let param = Param::read_write(
            move || shown.figures(),
            move |text| {
                set.set(text)?;
                set.make_room();
                Ok(())
            },
        );
        group.add(
            "max_cached_mb",
            param.about("data that the mount keeps, MiB; what nobody used for long goes first"),
        );
        group
    }

    fn figures(&self) -> String {
        let max = self.max_mib.load(Relaxed);
        let used = self.used.load(Relaxed) >> 20;
        format!(
            "max_cached_mb: {max}\nused_mb: {used}\nunused_mb: {}",
            max.saturating_sub(used)
        )
    }

    /// Takes a number, or a line as it is shown.
    fn set(&self, text: &str) -> Result<(), String> {
        let number = text.trim().trim_start_matches("max_cached_mb:").trim();
        let mib = number.parse().ok().filter(|n| (MIB.0..=MIB.1).contains(n));
        let mib = mib.ok_or_else(|| format!("expected a whole number from {} to {}", MIB.0, MIB.1))?;
        self.max_mib.store(mib, Relaxed);
        Ok(())
    }
}

/// The first resource behind one.
fn behind(res: LdlmResId) -> LdlmResId {
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
    fn the_value_is_shown_and_taken_as_lustre_does() {
        let cached = Cached::new(100);
        cached.changed(0, 30 << 20);
        assert_eq!(cached.figures(), "max_cached_mb: 100\nused_mb: 30\nunused_mb: 70");
        assert_eq!(cached.set("32"), Ok(()));
        cached.changed(0, 10 << 20);
        assert_eq!(cached.figures(), "max_cached_mb: 32\nused_mb: 40\nunused_mb: 0");
        assert_eq!(cached.set("max_cached_mb: 64"), Ok(()));
        assert!(cached.set("1").is_err() && cached.set("much").is_err());
        assert_eq!(cached.surplus(), 0);
    }

    #[test]
    fn the_resource_behind_one_is_the_next_in_order() {
        let res = |name| LdlmResId { name };
        assert_eq!(behind(res([1, 2, 0, 0])), res([1, 2, 0, 1]));
        assert_eq!(behind(res([1, u64::MAX, u64::MAX, u64::MAX])), res([2, 0, 0, 0]));
    }
}
