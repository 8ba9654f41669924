//! Orders the OSTs for a new file's stripes: round-robin while their free space is about equal,
//! else weighted by free space. The order omits full and read-only OSTs, OSTs without available
//! objects, and degraded OSTs while others are usable; slow OSTs come last. If the user lists the
//! OSTs, the order is this list. If the user chose only the first OST, it comes first in any case.
//! This module is pure.

use wire::{Errno, OstIndex};

use crate::layout::StripeRequest;

/// OSTs are balanced if the most and the least free space differ by at most this many 256ths of the
/// most (17 %, as in Lustre).
const BALANCED_256THS: u128 = 43;

/// An OST as a candidate for a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The OST's index.
    pub ost: OstIndex,
    /// Free space for users, bytes.
    pub free: u64,
    /// The MDT has precreated objects of the OST for new files.
    pub ready: bool,
    /// The MDT is connected to the OST.
    pub connected: bool,
    /// The OST has too little space or too few inodes for new files, or the administrator excludes
    /// it from them.
    pub full: bool,
    /// A store of the OST refuses changes.
    pub read_only: bool,
    /// The OST's disk has failed an operation.
    pub degraded: bool,
    /// The OST has left a request unanswered for a while.
    pub slow: bool,
}

impl Candidate {
    fn is_usable(&self) -> bool {
        self.ready && self.refusal().is_none()
    }

    /// The error of a create that must use this OST, if the OST takes no new files.
    fn refusal(&self) -> Option<Errno> {
        match self {
            Candidate { full: true, .. } => Some(Errno::ENOSPC),
            Candidate { read_only: true, .. } => Some(Errno::EROFS),
            _ => None,
        }
    }
}

/// The OSTs to try, in order, for a new file; `turn` is the number of earlier files. The list may
/// be longer than the stripe count, because an OST may have no object left when the caller tries
/// it.
///
/// # Errors
///
/// `ENOSPC` if an OST that the user chose is full, `EROFS` if it is read-only, `EINVAL` if it is
/// unknown. `ENOSPC` or `EROFS` if all connected OSTs are full or read-only.
pub(crate) fn ost_order(
    candidates: &[Candidate],
    striping: &StripeRequest,
    turn: u64,
) -> Result<Vec<OstIndex>, Errno> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let refusal = |ost: &OstIndex| candidates.iter().find(|c| c.ost == *ost)?.refusal();
    if !striping.osts.is_empty() {
        if let Some(e) = striping.osts.iter().find_map(refusal) {
            return Err(e);
        }
        let known = |ost: &OstIndex| candidates.iter().any(|c| c.ost == *ost);
        return if striping.osts.iter().all(known) {
            Ok(striping.osts.clone())
        } else {
            Err(Errno::EINVAL)
        };
    }
    let mut usable: Vec<Candidate> = candidates.iter().copied().filter(Candidate::is_usable).collect();
    if usable.iter().any(|c| !c.degraded) {
        usable.retain(|c| !c.degraded);
    }
    if let Some(e) = striping.first.as_ref().and_then(refusal) {
        return Err(e);
    }
    let connected = candidates.iter().filter(|c| c.connected);
    let refusals: Option<Vec<Errno>> = connected.map(Candidate::refusal).collect();
    match refusals {
        Some(refusals) if refusals.contains(&Errno::ENOSPC) => return Err(Errno::ENOSPC),
        Some(refusals) if !refusals.is_empty() => return Err(Errno::EROFS),
        _ => {}
    }
    if let Some(first) = striping.first {
        if !candidates.iter().any(|c| c.ost == first) {
            return Err(Errno::EINVAL);
        }
        usable.retain(|c| c.ost != first);
        usable.sort_by_key(|c| (c.slow, c.ost.0.wrapping_sub(first.0)));
        return Ok(std::iter::once(first)
            .chain(usable.iter().map(|c| c.ost))
            .collect());
    }
    usable.sort_by_key(|c| c.ost);
    let (mut slow, mut usable): (Vec<_>, Vec<_>) = usable.into_iter().partition(|c| c.slow);
    if usable.is_empty() {
        std::mem::swap(&mut slow, &mut usable);
    }
    let most = usable.iter().map(|c| c.free).max().unwrap_or(0);
    let least = usable.iter().map(|c| c.free).min().unwrap_or(0);
    let balanced = u128::from(most - least) <= u128::from(most) * BALANCED_256THS / 256;
    let start = if balanced {
        turn as usize % usable.len().max(1)
    } else {
        weighted_start(&usable, turn)
    };
    usable.rotate_left(start);
    Ok(usable.iter().chain(&slow).map(|c| c.ost).collect())
}

/// The OST of each stripe of an overstriped file with `count` stripes: the OSTs of `order`, several
/// times. As in Lustre, an OST gets at most its even share over all `ost_count` OSTs, so the file
/// gets fewer stripes if some OSTs are unusable.
pub(crate) fn overstripe(order: &[OstIndex], count: usize, ost_count: usize) -> Vec<OstIndex> {
    let per_ost = count.div_ceil(ost_count.max(1));
    let stripes = count.min(order.len() * per_ost);
    order.iter().copied().cycle().take(stripes).collect()
}

/// The position of the OST to try first: over many turns, each OST comes first in proportion to its
/// free space.
fn weighted_start(usable: &[Candidate], turn: u64) -> usize {
    /// The fractional part of the golden ratio, in units of 2^-64. The fractional parts of its
    /// multiples are spread evenly, whatever their number.
    const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let fraction = u128::from(turn.wrapping_mul(GOLDEN_RATIO));
    let total: u128 = usable.iter().map(|c| u128::from(c.free)).sum();
    let mut offset = (fraction * total) >> 64;
    for (i, c) in usable.iter().enumerate() {
        match offset.checked_sub(c.free.into()) {
            Some(rest) => offset = rest,
            None => return i,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Candidate;
    use crate::layout::StripeRequest;
    use wire::{Errno, OstIndex};

    fn osts(free: &[u64]) -> Vec<Candidate> {
        let candidate = |(i, free): (usize, &u64)| Candidate {
            ost: OstIndex(i as u32),
            free: *free,
            ready: true,
            connected: true,
            full: false,
            read_only: false,
            degraded: false,
            slow: false,
        };
        free.iter().enumerate().map(candidate).collect()
    }

    /// As [`super::ost_order`], with the indices as numbers.
    fn ost_order(candidates: &[Candidate], striping: &StripeRequest, turn: u64) -> Result<Vec<u32>, Errno> {
        let osts = super::ost_order(candidates, striping, turn)?;
        Ok(osts.into_iter().map(|ost| ost.0).collect())
    }

    #[test]
    fn balanced_osts_take_turns() {
        let three = osts(&[100, 98, 95]);
        let first: Vec<u32> = (0..6)
            .map(|t| ost_order(&three, &StripeRequest::default(), t).unwrap()[0])
            .collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2]);
        assert_eq!(
            ost_order(&three, &StripeRequest::default(), 1).unwrap(),
            [1, 2, 0]
        );
    }

    #[test]
    fn overstriped_file_takes_osts_in_turn_up_to_an_even_share() {
        let overstripe = |order: &[u32], count, osts| {
            let order: Vec<OstIndex> = order.iter().map(|i| OstIndex(*i)).collect();
            let stripes = super::overstripe(&order, count, osts);
            stripes.into_iter().map(|ost| ost.0).collect::<Vec<_>>()
        };
        assert_eq!(overstripe(&[1, 2, 0], 7, 3), [1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(overstripe(&[1, 2, 0], 2, 3), [1, 2]);
        assert_eq!(overstripe(&[1, 2], 7, 3), [1, 2, 1, 2, 1, 2]);
        assert_eq!(overstripe(&[], 7, 3), [0; 0]);
        assert_eq!(overstripe(&[0], 4, 1), [0; 4]);
    }

    #[test]
    fn unbalanced_osts_are_weighted_by_free_space() {
        let two = osts(&[900 << 20, 100 << 20]);
        let second = (0..1000)
            .filter(|t| ost_order(&two, &StripeRequest::default(), *t).unwrap()[0] == 1)
            .count();
        assert!((80..120).contains(&second), "{second} of 1000");
    }

    #[test]
    fn osts_chosen_by_the_user_come_first_and_unknown_ones_are_errors() {
        let three = osts(&[1, 1, 1]);
        let listed = StripeRequest {
            osts: vec![OstIndex(2), OstIndex(0)],
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &listed, 0).unwrap(), [2, 0]);
        let first = StripeRequest {
            first: Some(OstIndex(1)),
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &first, 0).unwrap(), [1, 2, 0]);
        for bad in [
            StripeRequest {
                osts: vec![OstIndex(3)],
                ..StripeRequest::default()
            },
            StripeRequest {
                first: Some(OstIndex(9)),
                ..StripeRequest::default()
            },
        ] {
            assert_eq!(ost_order(&three, &bad, 0), Err(Errno::EINVAL));
        }
        assert_eq!(
            ost_order(&[], &StripeRequest::default(), 0).unwrap(),
            [] as [u32; 0]
        );
    }

    #[test]
    fn full_osts_are_skipped_and_all_full_is_enospc() {
        let mut three = osts(&[1, 1, 1]);
        three[1].full = true;
        assert_eq!(ost_order(&three, &StripeRequest::default(), 1).unwrap(), [2, 0]);
        for striping in [
            StripeRequest {
                first: Some(OstIndex(1)),
                ..StripeRequest::default()
            },
            StripeRequest {
                osts: vec![OstIndex(0), OstIndex(1)],
                ..StripeRequest::default()
            },
        ] {
            assert_eq!(ost_order(&three, &striping, 0), Err(Errno::ENOSPC));
        }
        three[0].full = true;
        // The third OST has space, so there is no error while it is connected: it may have objects
        // again soon.
        three[2].ready = false;
        assert_eq!(
            ost_order(&three, &StripeRequest::default(), 0).unwrap(),
            [] as [u32; 0]
        );
        three[2].connected = false;
        assert_eq!(
            ost_order(&three, &StripeRequest::default(), 0),
            Err(Errno::ENOSPC)
        );
    }

    #[test]
    fn read_only_ost_is_skipped_and_choosing_it_is_erofs() {
        let mut three = osts(&[1, 1, 1]);
        three[1].read_only = true;
        assert_eq!(ost_order(&three, &StripeRequest::default(), 1).unwrap(), [2, 0]);
        let first = |ost| StripeRequest {
            first: Some(OstIndex(ost)),
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &first(2), 0).unwrap(), [2, 0]);
        let listed = StripeRequest {
            osts: vec![OstIndex(0), OstIndex(1)],
            ..StripeRequest::default()
        };
        for striping in [first(1), listed] {
            assert_eq!(ost_order(&three, &striping, 0), Err(Errno::EROFS));
        }
        three.iter_mut().for_each(|c| c.read_only = true);
        let order = |osts: &[Candidate]| ost_order(osts, &StripeRequest::default(), 0);
        assert_eq!(order(&three), Err(Errno::EROFS));
        three[0] = Candidate {
            read_only: false,
            full: true,
            ..three[0]
        };
        assert_eq!(order(&three), Err(Errno::ENOSPC));
    }

    #[test]
    fn degraded_ost_gets_files_only_if_chosen_or_if_no_other_is_usable() {
        let mut three = osts(&[1, 1, 1]);
        three[1].degraded = true;
        assert_eq!(ost_order(&three, &StripeRequest::default(), 1).unwrap(), [2, 0]);
        let first = StripeRequest {
            first: Some(OstIndex(1)),
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &first, 0).unwrap(), [1, 2, 0]);
        (three[0].full, three[2].ready) = (true, false);
        assert_eq!(ost_order(&three, &StripeRequest::default(), 0).unwrap(), [1]);
    }

    #[test]
    fn unresponsive_ost_comes_last() {
        let mut three = osts(&[1, 1, 1]);
        three[1].slow = true;
        let first_turns =
            |osts: &[Candidate]| [0, 1, 2].map(|t| ost_order(osts, &StripeRequest::default(), t).unwrap());
        assert_eq!(first_turns(&three), [[0, 2, 1], [2, 0, 1], [0, 2, 1]]);
        let first = |ost| StripeRequest {
            first: Some(OstIndex(ost)),
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &first(0), 0).unwrap(), [0, 2, 1]);
        // An OST chosen by the user comes first even if it is slow.
        assert_eq!(ost_order(&three, &first(1), 0).unwrap(), [1, 2, 0]);
        three.iter_mut().for_each(|c| c.slow = true);
        assert_eq!(first_turns(&three), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn ost_without_objects_is_skipped() {
        let mut three = osts(&[1, 1, 1]);
        three[1].ready = false;
        assert_eq!(ost_order(&three, &StripeRequest::default(), 1).unwrap(), [2, 0]);
    }
}
