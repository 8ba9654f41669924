//! Extent locks: how far a granted extent is expanded, and which holders get a glimpse AST.
//!
//! If the object has no lock of an incompatible mode, the whole object is granted, so that a client
//! that works alone sends only one request. Otherwise only the end of the extent grows, up to the
//! next such lock. The end is aligned like the request, so that clients that write interleaved
//! blocks of one size do not lock each other's blocks. Group locks and requests with
//! `LDLM_FL_NO_EXPANSION` get exactly their extent.

use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::policy::{Extent, Policy};
use std::collections::BTreeMap;

/// If the object has more locks of incompatible modes than this, a write lock (PW, CW) is expanded
/// to at most [`EXPANSION_MAX`].
const CONTENDED_LOCKS: usize = 32;
/// Maximum length of an expanded write lock on such a contended object, bytes
/// (`LDLM_MAX_GROWN_EXTENT`).
const EXPANSION_MAX: u64 = 32 << 20;
/// Minimum alignment of an expanded end, bytes.
const PAGE: u64 = 4096;

/// The extent to grant to `want`, given the granted and waiting locks of its resource.
pub(crate) fn expanded_extent<'a>(
    want: &Lock,
    requested: &Extent,
    others: impl Iterator<Item = &'a Lock>,
) -> Extent {
    if want.mode == LockMode::Group || want.no_expansion {
        return *requested;
    }
    let mut incompatible = 0;
    let mut end = u64::MAX;
    for other in others.filter(|lock| lock.id != want.id && !lock.mode.compatible(want.mode)) {
        let Policy::Extent(extent) = &other.policy else {
            continue;
        };
        incompatible += 1;
        if extent.overlaps(requested) {
            // A waiting lock needs the same bytes: grant no more than requested.
            end = requested.end;
        } else if extent.start > requested.end {
            end = end.min(extent.start - 1);
        }
    }
    if incompatible == 0 {
        return Extent::WHOLE;
    }
    if incompatible > CONTENDED_LOCKS && matches!(want.mode, LockMode::Pw | LockMode::Cw) {
        end = end
            .min(requested.start.saturating_add(EXPANSION_MAX))
            .max(requested.end);
    }
    Extent {
        start: requested.start,
        end: aligned_end(requested, end),
        gid: requested.gid,
    }
}

/// The last byte to grant: `end` rounded down to the end of a whole unit, but at least the
/// request's last byte. The unit is the largest power of two that divides both the start of the
/// request and the byte after its end, and at least a page.
fn aligned_end(requested: &Extent, end: u64) -> u64 {
    let Some(after) = end.checked_add(1) else {
        return end;
    };
    let ends = requested.start | requested.end.wrapping_add(1);
    let unit = 1u64 << ends.trailing_zeros().clamp(PAGE.trailing_zeros(), u64::BITS - 1);
    (after & !(unit - 1)).saturating_sub(1).max(requested.end)
}

/// The locks of clients that may have written beyond `size`: for each client with PW locks that end
/// at or after that offset, the one with the highest end.
pub(crate) fn writers_beyond<'a>(size: u64, granted: impl Iterator<Item = &'a Lock>) -> Vec<LockId> {
    let mut highest: BTreeMap<Holder, (u64, LockId)> = BTreeMap::new();
    for lock in granted.filter(|l| l.mode == LockMode::Pw && l.holder != Holder::SERVER) {
        let Policy::Extent(extent) = &lock.policy else {
            continue;
        };
        if extent.end < size {
            continue;
        }
        let best = highest.entry(lock.holder).or_insert((extent.end, lock.id));
        if extent.end > best.0 {
            *best = (extent.end, lock.id);
        }
    }
    highest.into_values().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::{EXPANSION_MAX, expanded_extent, writers_beyond};
    use crate::action::LockRequest;
    use crate::lock::{Holder, Lock, LockId};
    use crate::mode::LockMode;
    use crate::policy::{Extent, Policy};
    use wire::{LdlmResId, OBD_OBJECT_EOF};

    fn lock(id: u64, mode: LockMode, start: u64, end: u64) -> Lock {
        let request = LockRequest::new(
            Holder(id),
            id,
            LdlmResId::default(),
            mode,
            Policy::extent(start, end),
        );
        Lock {
            id: LockId(id),
            ..Lock::from_request(&request)
        }
    }

    fn expand(mode: LockMode, start: u64, end: u64, others: &[Lock]) -> (u64, u64) {
        let requested = Extent { start, end, gid: 0 };
        let granted = expanded_extent(&lock(1, mode, start, end), &requested, others.iter());
        (granted.start, granted.end)
    }

    #[test]
    fn without_conflicts_a_lock_covers_the_whole_object() {
        assert_eq!(expand(LockMode::Pw, 4096, 8191, &[]), (0, OBD_OBJECT_EOF));
        let readers = [lock(2, LockMode::Pr, 0, OBD_OBJECT_EOF)];
        assert_eq!(expand(LockMode::Pr, 4096, 8191, &readers), (0, OBD_OBJECT_EOF));
    }

    #[test]
    fn a_lock_expands_to_the_next_conflict_in_aligned_steps() {
        let writer = [lock(2, LockMode::Pw, 1_000_000, OBD_OBJECT_EOF)];
        assert_eq!(
            expand(LockMode::Pr, 0, 4095, &writer),
            (0, 999_423),
            "whole pages below the writer's"
        );
        let writer = [lock(2, LockMode::Pw, 5 << 20, OBD_OBJECT_EOF)];
        assert_eq!(
            expand(LockMode::Pw, 2 << 20, (4 << 20) - 1, &writer),
            (2 << 20, (4 << 20) - 1),
            "whole 2 MiB"
        );
    }

    #[test]
    fn the_requested_extent_is_always_granted() {
        let writer = [lock(2, LockMode::Pw, 5001, OBD_OBJECT_EOF)];
        assert_eq!(expand(LockMode::Pw, 100, 5000, &writer), (100, 5000));
        let below = [lock(2, LockMode::Pw, 0, 99)];
        assert_eq!(expand(LockMode::Pw, 100, 5000, &below), (100, OBD_OBJECT_EOF));
        let same_bytes = [lock(2, LockMode::Pw, 4000, 4001)];
        assert_eq!(expand(LockMode::Pw, 100, 5000, &same_bytes), (100, 5000));
    }

    #[test]
    fn a_contended_write_lock_expands_up_to_the_limit() {
        let many: Vec<Lock> = (0..40)
            .map(|i| lock(2 + i, LockMode::Pw, (1 + i) << 40, (1 + i) << 40))
            .collect();
        assert_eq!(expand(LockMode::Pw, 0, 4095, &many), (0, EXPANSION_MAX - 1));
        assert_eq!(expand(LockMode::Pr, 0, 4095, &many), (0, (1 << 40) - 1));
    }

    #[test]
    fn group_locks_and_exact_requests_do_not_expand() {
        assert_eq!(expand(LockMode::Group, 5, 6, &[]), (5, 6));
        let exact = Lock {
            no_expansion: true,
            ..lock(1, LockMode::Pw, 5, 6)
        };
        let requested = Extent {
            start: 5,
            end: 6,
            gid: 0,
        };
        assert_eq!(expanded_extent(&exact, &requested, std::iter::empty()), requested);
    }

    #[test]
    fn glimpses_go_to_each_writers_highest_lock_beyond_the_size() {
        let mut held = vec![
            lock(2, LockMode::Pw, 0, 999),
            lock(3, LockMode::Pw, 1000, 1999),
            lock(4, LockMode::Pr, 0, 9999),
        ];
        held.push(Lock {
            holder: Holder(2),
            ..lock(5, LockMode::Pw, 2000, OBD_OBJECT_EOF)
        });
        let mut chosen = writers_beyond(500, held.iter());
        chosen.sort_unstable();
        assert_eq!(chosen, [LockId(3), LockId(5)]);
        assert_eq!(writers_beyond(2500, held.iter()), [LockId(5)]);
    }
}
