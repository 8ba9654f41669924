//! The values of `fail_loc` and `fail_val`: which number is selected, and which of its uses fail.
//! The rules are Lustre's. This module is pure.

/// In `fail_loc`: a use of the number has failed.
const FAILED: u32 = 0x4000_0000;
/// In `fail_loc`: only one use of the number fails.
const ONCE: u32 = 0x8000_0000;
/// In `fail_loc`: the first `fail_val` uses do not fail.
const SKIP: u32 = 0x2000_0000;
/// In `fail_loc`: only `fail_val` uses fail.
const SOME: u32 = 0x1000_0000;
/// In `fail_loc`: each use fails with a probability of 1 in `fail_val`.
const RAND: u32 = 0x0800_0000;
/// In `fail_loc`: bits that select variants of some of Lustre's numbers.
const VARIANTS: u32 = 0x0600_0000;
/// In `fail_loc`: the number.
const NUMBER: u32 = 0xffff;

/// `fail_loc` and `fail_val`, with the count of uses.
#[derive(Debug, Default)]
pub(super) struct FailState {
    loc: u32,
    val: u32,
    /// Uses of the number that count for `SKIP` or `SOME`.
    count: u32,
    /// Number of draws for `RAND`.
    draws: u64,
}

impl FailState {
    /// The value of `fail_loc`.
    pub(super) fn loc(&self) -> u32 {
        self.loc
    }

    /// The value of `fail_val`.
    pub(super) fn val(&self) -> u32 {
        self.val
    }

    /// The selected number; 0: none.
    pub(super) fn number(&self) -> u16 {
        (self.loc & NUMBER) as u16
    }

    /// Sets `fail_loc`, and starts its counts again.
    pub(super) fn set_loc(&mut self, loc: u32) {
        (self.loc, self.count) = (loc, 0);
    }

    /// Sets `fail_val`.
    pub(super) fn set_val(&mut self, val: u32) {
        self.val = val;
    }

    /// Whether this use of the number fails. With `once`, at most one use fails whatever
    /// `fail_loc` says.
    pub(super) fn fails(&mut self, once: bool) -> bool {
        if self.loc & (FAILED | ONCE) == FAILED | ONCE {
            return false;
        }
        if self.loc & RAND != 0 && !self.draw() {
            return false;
        }
        if self.loc & SKIP != 0 {
            self.count = self.count.saturating_add(1);
            if self.count <= self.val {
                return false;
            }
        }
        if self.loc & SOME != 0 && (self.loc & ONCE == 0 || self.val <= 1) {
            self.count = self.count.saturating_add(1);
            if self.count >= self.val {
                self.loc |= ONCE;
                self.count = 0;
            }
        }
        self.loc |= FAILED;
        if once {
            self.loc |= ONCE;
        }
        true
    }

    /// True for 1 in `fail_val` calls. The sequence is fixed, so that a run can be repeated.
    fn draw(&mut self) -> bool {
        self.draws += 1;
        // The fractional parts of the multiples of the golden ratio are spread evenly.
        let fraction = self.draws.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.val >= 2 && (u128::from(fraction) * u128::from(self.val)) >> 64 == 0
    }
}

/// The bits of `fail_loc` that have a meaning, besides the number.
pub(super) const FLAGS: u32 = FAILED | ONCE | SKIP | SOME | RAND | VARIANTS;

#[cfg(test)]
mod tests {
    use super::FailState;

    /// The results of `n` uses after `fail_loc` and `fail_val` were set.
    fn uses(loc: u32, val: u32, n: usize) -> Vec<bool> {
        let mut state = FailState::default();
        state.set_val(val);
        state.set_loc(loc);
        (0..n).map(|_| state.fails(false)).collect()
    }

    #[test]
    fn bits_select_the_uses_that_fail() {
        assert_eq!(uses(0x119, 0, 3), [true; 3]);
        assert_eq!(uses(0x8000_0119, 0, 3), [true, false, false]);
        assert_eq!(uses(0x2000_0119, 2, 4), [false, false, true, true]);
        assert_eq!(uses(0xa000_0119, 2, 4), [false, false, true, false]);
        assert_eq!(uses(0x1000_0119, 2, 4), [true, true, false, false]);
        assert_eq!(uses(0x0800_0119, 1, 3), [false; 3]);
        let one_in_five = uses(0x0800_0119, 5, 1000);
        let failed = one_in_five.into_iter().filter(|failed| *failed).count();
        assert!((190..=210).contains(&failed), "{failed} of 1000");
    }

    #[test]
    fn rule_that_fails_once_leaves_the_bits_of_lustre() {
        let mut state = FailState::default();
        state.set_loc(0x115);
        assert_eq!((state.fails(true), state.fails(true)), (true, false));
        assert_eq!((state.loc(), state.number()), (0xc000_0115, 0x115));
        state.set_loc(0x115);
        assert!(state.fails(true), "setting fail_loc starts again");
    }
}
