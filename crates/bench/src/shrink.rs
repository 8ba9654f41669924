//! Shortens a failing sequence: omits parts, halves first, as long as the rest still fails.

/// The shortest failing sequence found by omitting parts of `steps`, which fails as a whole; never
/// empty. `fails` tells whether a candidate fails. After `trials_max` candidates, returns the
/// shortest failing sequence so far.
pub fn shrink<T: Clone>(steps: Vec<T>, trials_max: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let (mut best, mut part, mut trials) = (steps, 0, 0);
    loop {
        // Omit halves first, then smaller parts, and finally single steps until none can be
        // omitted.
        part = match part {
            0 => best.len().div_ceil(2),
            n => n.div_ceil(2),
        };
        let mut shorter = false;
        let mut end = best.len();
        while end > 0 {
            if trials == trials_max {
                return best;
            }
            // Begin at the end: later steps may depend on earlier ones, not vice versa.
            let start = end.saturating_sub(part);
            let candidate = [&best[..start], &best[end..]].concat();
            trials += 1;
            if !candidate.is_empty() && fails(&candidate) {
                best = candidate;
                shorter = true;
            }
            end = start;
        }
        if part <= 1 && !shorter {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn unneeded_steps_are_omitted() {
        let fails = |steps: &[u32]| steps.contains(&17) && steps.contains(&80) && steps.contains(&81);
        assert_eq!(shrink((0..100).collect(), 10_000, fails), [17, 80, 81]);
        assert_eq!(shrink(vec![5], 10, |_| true), [5]);
    }

    #[test]
    fn trials_are_limited() {
        let mut trials = 0;
        let kept = shrink((0..100).collect(), 3, |_: &[u32]| {
            trials += 1;
            false
        });
        assert_eq!((trials, kept.len()), (3, 100));
    }
}
