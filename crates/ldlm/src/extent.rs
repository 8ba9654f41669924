//! Extent locks: how far a granted one grows, and whom a size query asks.
//!
//! A lock that nobody is in the way of covers the whole object, so that a client working alone asks once. Otherwise it
//! reaches up to the next lock in the way, in pieces aligned as the request was, so that clients writing in turns of
//! equal blocks do not take each other's blocks.

use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::policy::{Extent, Policy};
use std::collections::HashMap;

/// With so many locks in the way, a writer's lock grows no further than [`GROWN_MAX`].
const CONTENDED_LOCKS: usize = 32;
/// How far a contended writer's lock grows (`LDLM_MAX_GROWN_EXTENT`).
const GROWN_MAX: u64 = 32 << 20;
const PAGE: u64 = 4096;

/// The extent that `want` is granted with, among the other locks of its resource, granted and waiting.
pub(crate) fn grown<'a>(want: &Lock, asked: &Extent, others: impl Iterator<Item = &'a Lock>) -> Extent {
    if want.mode == LockMode::Group || want.no_expansion {
        return *asked;
    }
    let mut in_the_way = 0;
    let mut end = u64::MAX;
    for other in others.filter(|o| o.id != want.id && !o.mode.compatible(want.mode)) {
        let Policy::Extent(o) = &other.policy else {
            continue;
        };
        in_the_way += 1;
        if o.overlaps(asked) {
            // A waiter behind this lock wants the same bytes: take no more than was asked for.
            end = asked.end;
        } else if o.start > asked.end {
            end = end.min(o.start - 1);
        }
    }
    if in_the_way == 0 {
        return Extent::WHOLE;
    }
    if in_the_way > CONTENDED_LOCKS && matches!(want.mode, LockMode::Pw | LockMode::Cw) {
        end = end.min(asked.start.saturating_add(GROWN_MAX)).max(asked.end);
    }
    Extent {
        start: asked.start,
        end: aligned_end(asked, end),
        gid: asked.gid,
    }
}

/// `end` rounded down to the largest power of two (a page at least) that divides both ends of what was asked for.
fn aligned_end(asked: &Extent, end: u64) -> u64 {
    let Some(after) = end.checked_add(1) else {
        return end;
    };
    let ends = asked.start | asked.end.wrapping_add(1);
    let unit = 1u64 << ends.trailing_zeros().clamp(PAGE.trailing_zeros(), u64::BITS - 1);
    (after & !(unit - 1)).saturating_sub(1).max(asked.end)
}

/// The locks whose holders may know of a bigger object than `size`: of each client the write lock that reaches
/// highest.
pub(crate) fn writers_beyond<'a>(size: u64, granted: impl Iterator<Item = &'a Lock>) -> Vec<LockId> {
    let mut highest: HashMap<Holder, (u64, LockId)> = HashMap::new();
    for lock in granted.filter(|l| l.mode == LockMode::Pw && l.holder != Holder::SERVER) {
        let Policy::Extent(e) = &lock.policy else { continue };
        if e.end < size {
            continue;
        }
        let best = highest.entry(lock.holder).or_insert((e.end, lock.id));
        if e.end > best.0 {
            *best = (e.end, lock.id);
        }
    }
    highest.into_values().map(|(_, id)| id).collect()
}
