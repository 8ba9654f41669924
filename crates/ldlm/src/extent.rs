//! Extent locks: how far a granted extent is expanded, and which holders a glimpse asks.
//!
//! Without conflicting locks the whole object is granted, so that a client working alone sends one
//! request. Otherwise the extent is expanded up to the next conflicting lock, aligned like the
//! request, so that clients that write equal blocks in turns do not take each other's blocks.

use crate::lock::{Holder, Lock, LockId};
use crate::mode::LockMode;
use crate::policy::{Extent, Policy};
use std::collections::HashMap;

/// With more conflicting locks than this, a write lock is expanded by at most [`GROWN_MAX`].
const CONTENDED_LOCKS: usize = 32;
/// Maximum expansion of a contended write lock (`LDLM_MAX_GROWN_EXTENT`).
const GROWN_MAX: u64 = 32 << 20;
const PAGE: u64 = 4096;

/// The extent to grant to `want`, given the granted and waiting locks of its resource.
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
            // A waiting lock needs the same bytes: grant no more than requested.
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

/// `end` rounded down to the largest power of two (at least a page) that divides both ends of the
/// request.
fn aligned_end(asked: &Extent, end: u64) -> u64 {
    let Some(after) = end.checked_add(1) else {
        return end;
    };
    let ends = asked.start | asked.end.wrapping_add(1);
    let unit = 1u64 << ends.trailing_zeros().clamp(PAGE.trailing_zeros(), u64::BITS - 1);
    (after & !(unit - 1)).saturating_sub(1).max(asked.end)
}

/// The locks whose holders may know a size above `size`: for each client, its write lock with the
/// highest end.
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

#[cfg(test)]
mod tests {
    use super::{GROWN_MAX, grown, writers_beyond};
    use crate::action::NewLock;
    use crate::lock::{Holder, Lock, LockId};
    use crate::mode::LockMode;
    use crate::policy::{Extent, Policy};
    use wire::{LdlmResId, OBD_OBJECT_EOF};

    fn lock(id: u64, mode: LockMode, start: u64, end: u64) -> Lock {
        let new = NewLock::new(
            Holder(id),
            id,
            LdlmResId::default(),
            mode,
            Policy::extent(start, end),
        );
        Lock {
            id: LockId(id),
            ..Lock::of(&new)
        }
    }

    fn grow(mode: LockMode, start: u64, end: u64, others: &[Lock]) -> (u64, u64) {
        let asked = Extent { start, end, gid: 0 };
        let got = grown(&lock(1, mode, start, end), &asked, others.iter());
        (got.start, got.end)
    }

    #[test]
    fn alone_or_among_friends_it_covers_the_whole_object() {
        assert_eq!(grow(LockMode::Pw, 4096, 8191, &[]), (0, OBD_OBJECT_EOF));
        let readers = [lock(2, LockMode::Pr, 0, OBD_OBJECT_EOF)];
        assert_eq!(grow(LockMode::Pr, 4096, 8191, &readers), (0, OBD_OBJECT_EOF));
    }

    #[test]
    fn it_grows_up_to_the_next_lock_in_the_way_in_aligned_pieces() {
        let writer = [lock(2, LockMode::Pw, 1_000_000, OBD_OBJECT_EOF)];
        assert_eq!(
            grow(LockMode::Pr, 0, 4095, &writer),
            (0, 999_423),
            "whole pages below the writer's"
        );
        let writer = [lock(2, LockMode::Pw, 5 << 20, OBD_OBJECT_EOF)];
        assert_eq!(
            grow(LockMode::Pw, 2 << 20, (4 << 20) - 1, &writer),
            (2 << 20, (4 << 20) - 1),
            "whole 2 MiB"
        );
    }

    #[test]
    fn what_was_asked_for_is_always_in_it() {
        let writer = [lock(2, LockMode::Pw, 5001, OBD_OBJECT_EOF)];
        assert_eq!(grow(LockMode::Pw, 100, 5000, &writer), (100, 5000));
        let below = [lock(2, LockMode::Pw, 0, 99)];
        assert_eq!(grow(LockMode::Pw, 100, 5000, &below), (100, OBD_OBJECT_EOF));
        let waits_for_the_same = [lock(2, LockMode::Pw, 4000, 4001)];
        assert_eq!(grow(LockMode::Pw, 100, 5000, &waits_for_the_same), (100, 5000));
    }

    #[test]
    fn a_writer_among_many_grows_no_further_than_the_limit() {
        let many: Vec<Lock> = (0..40)
            .map(|i| lock(2 + i, LockMode::Pw, (1 + i) << 40, (1 + i) << 40))
            .collect();
        assert_eq!(grow(LockMode::Pw, 0, 4095, &many), (0, GROWN_MAX - 1));
        assert_eq!(grow(LockMode::Pr, 0, 4095, &many), (0, (1 << 40) - 1));
    }

    #[test]
    fn group_locks_and_exact_wishes_do_not_grow() {
        assert_eq!(grow(LockMode::Group, 5, 6, &[]), (5, 6));
        let exact = Lock {
            no_expansion: true,
            ..lock(1, LockMode::Pw, 5, 6)
        };
        let asked = Extent {
            start: 5,
            end: 6,
            gid: 0,
        };
        assert_eq!(grown(&exact, &asked, std::iter::empty()), asked);
    }

    #[test]
    fn of_each_writing_client_the_highest_lock_beyond_the_size_is_asked() {
        let mut held = vec![
            lock(2, LockMode::Pw, 0, 999),
            lock(3, LockMode::Pw, 1000, 1999),
            lock(4, LockMode::Pr, 0, 9999),
        ];
        held.push(Lock {
            holder: Holder(2),
            ..lock(5, LockMode::Pw, 2000, OBD_OBJECT_EOF)
        });
        let mut asked = writers_beyond(500, held.iter());
        asked.sort_unstable();
        assert_eq!(asked, [LockId(3), LockId(5)]);
        assert_eq!(writers_beyond(2500, held.iter()), [LockId(5)]);
    }
}
