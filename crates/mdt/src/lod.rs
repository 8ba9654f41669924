//! Selects the OSTs for a new file's stripes: round-robin while they are about equally full, else
//! by free space; each OST at most once, and none that is disconnected or full. An OST that does
//! not answer comes last. Pure.

use wire::{Errno, OstIndex};

use crate::layout::StripeRequest;

/// Difference in free space above which OSTs count as unbalanced, in 1/256 (17 %, like Lustre).
const BALANCED: u128 = 43;

/// An OST as a candidate for a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The OST's index.
    pub ost: OstIndex,
    /// Free space for users, bytes.
    pub free: u64,
    /// Whether it has precreated objects available.
    pub ready: bool,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it has too little space or too few inodes for new files.
    pub full: bool,
    /// Whether it has left a request unanswered for a while.
    pub slow: bool,
}

impl Candidate {
    fn usable(&self) -> bool {
        self.ready && !self.full
    }
}

/// The OSTs to try, in order, for a new file; `turn` grows with every file. The list may be longer
/// than the stripe count: an OST without an available object is skipped.
///
/// # Errors
///
/// `ENOSPC` if all connected OSTs are full, or one that the user chose; `EINVAL` if the user chose
/// an unknown one.
pub(crate) fn ost_order(
    candidates: &[Candidate],
    striping: &StripeRequest,
    turn: u64,
) -> Result<Vec<OstIndex>, Errno> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let is_full = |ost: &OstIndex| candidates.iter().any(|c| c.ost == *ost && c.full);
    if !striping.osts.is_empty() {
        if striping.osts.iter().any(is_full) {
            return Err(Errno::ENOSPC);
        }
        let known = |ost: &OstIndex| candidates.iter().any(|c| c.ost == *ost);
        return if striping.osts.iter().all(known) {
            Ok(striping.osts.clone())
        } else {
            Err(Errno::EINVAL)
        };
    }
    let mut usable: Vec<Candidate> = candidates.iter().copied().filter(Candidate::usable).collect();
    let mut connected = candidates.iter().filter(|c| c.connected).peekable();
    let all_full = connected.peek().is_some() && connected.all(|c| c.full);
    if all_full || striping.first.as_ref().is_some_and(is_full) {
        return Err(Errno::ENOSPC);
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
    // Used only if the other OSTs do not suffice.
    let (mut slow, mut usable): (Vec<_>, Vec<_>) = usable.into_iter().partition(|c| c.slow);
    if usable.is_empty() {
        std::mem::swap(&mut slow, &mut usable);
    }
    let most = usable.iter().map(|c| c.free).max().unwrap_or(0);
    let least = usable.iter().map(|c| c.free).min().unwrap_or(0);
    let balanced = u128::from(most - least) <= u128::from(most) * BALANCED / 256;
    let start = if balanced {
        turn as usize % usable.len().max(1)
    } else {
        weighted(&usable, turn)
    };
    usable.rotate_left(start);
    Ok(usable.iter().chain(&slow).map(|c| c.ost).collect())
}

/// Selects a start so that each OST comes first in proportion to its free space, evenly over the
/// turns.
fn weighted(usable: &[Candidate], turn: u64) -> usize {
    // Multiples of the golden ratio are spread evenly over an interval, however many there are.
    let at = u128::from(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let total: u128 = usable.iter().map(|c| u128::from(c.free)).sum();
    let mut left = (at * total) >> 64;
    for (i, c) in usable.iter().enumerate() {
        match left.checked_sub(c.free.into()) {
            Some(rest) => left = rest,
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
            slow: false,
        };
        free.iter().enumerate().map(candidate).collect()
    }

    /// The indexes of the OSTs to try.
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
    fn unbalanced_osts_are_weighted_by_free_space() {
        let two = osts(&[900 << 20, 100 << 20]);
        let second = (0..1000)
            .filter(|t| ost_order(&two, &StripeRequest::default(), *t).unwrap()[0] == 1)
            .count();
        assert!((80..120).contains(&second), "{second} of 1000");
    }

    #[test]
    fn osts_chosen_by_the_user_are_used_or_an_error() {
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
        // The third OST may have objects again soon, so the request waits; for a disconnected one
        // it does not.
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
    fn unresponsive_ost_comes_last() {
        let mut three = osts(&[1, 1, 1]);
        three[1].slow = true;
        let in_turn =
            |of: &[Candidate]| [0, 1, 2].map(|t| ost_order(of, &StripeRequest::default(), t).unwrap());
        assert_eq!(in_turn(&three), [[0, 2, 1], [2, 0, 1], [0, 2, 1]]);
        let first = |ost| StripeRequest {
            first: Some(OstIndex(ost)),
            ..StripeRequest::default()
        };
        assert_eq!(ost_order(&three, &first(0), 0).unwrap(), [0, 2, 1]);
        // An OST chosen by the user is not replaced.
        assert_eq!(ost_order(&three, &first(1), 0).unwrap(), [1, 2, 0]);
        three.iter_mut().for_each(|c| c.slow = true);
        assert_eq!(in_turn(&three), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn ost_without_objects_is_skipped() {
        let mut three = osts(&[1, 1, 1]);
        three[1].ready = false;
        assert_eq!(ost_order(&three, &StripeRequest::default(), 1).unwrap(), [2, 0]);
    }
}
