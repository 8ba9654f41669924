//! Making a sequence that fails shorter: parts of it are left out, halves first, as long as it still fails.

/// The shortest sequence found by leaving out parts of `steps`, which fail together. `fails` says whether a candidate
/// still does; after `trials_max` candidates the best so far is it.
pub fn shrink<T: Clone>(steps: Vec<T>, trials_max: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let (mut best, mut part, mut trials) = (steps, 0, 0);
    loop {
        // Parts of half its length first, then smaller ones, and at the end one by one until none can go.
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
            // From the end: what comes last leans on what came before, not the other way round.
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
    fn what_is_not_needed_is_left_out() {
        let fails = |steps: &[u32]| steps.contains(&17) && steps.contains(&80) && steps.contains(&81);
        assert_eq!(shrink((0..100).collect(), 10_000, fails), [17, 80, 81]);
        assert_eq!(shrink(vec![5], 10, |_| true), [5]);
    }

    #[test]
    fn it_ends_when_there_were_enough_trials() {
        let mut trials = 0;
        let kept = shrink((0..100).collect(), 3, |_: &[u32]| {
            trials += 1;
            false
        });
        assert_eq!((trials, kept.len()), (3, 100));
    }
}
